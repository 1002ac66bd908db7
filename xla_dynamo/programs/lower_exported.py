"""An ATen FX graph to a program that stands for itself: logical shapes, every output a result.

The programs of `lower` are bound to torch's tensors: a transposed weight enters as its memory lies,
a view of an input is made by torch. Whoever runs an exported program has arrays and no strides.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.layouts import InputLayout
from xla_dynamo.programs.lower import ProgramLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import Output, Program

Node: TypeAlias = torch.fx.Node


def lower_exported(
    gm: torch.fx.GraphModule,
    fake_values: Mapping[Node, Any],
    target: Target,
    request: Request,
) -> Program:
    """Lower a graph whose nodes have the given fake values, of static sizes.

    Raises:
        UnsupportedOperator: a node has no rule, or an effect that only torch has.
        LoweringError: a rule failed or emitted another type than the fake value's.
    """
    with make_ir_context(), ir.Location.unknown():
        lowering = ExportedLowering(gm, fake_values, ModuleBuilder(target, request))
        return lowering.run(None)


class ExportedLowering(ProgramLowering):
    """A graph on its way into a program without strides, views of inputs and donations."""

    def donated(self) -> list[Node]:
        """None: new values of inputs are results."""
        return []

    def layout(self, node: Node) -> InputLayout:
        """Row-major, in the order of the dimensions."""
        return InputLayout(tuple(range(self.fake_values[node].ndim)))

    def output(self, node: Any) -> Output:
        """A result for each tensor, views of inputs included."""
        promised = self.fake_values.get(node) if isinstance(node, torch.fx.Node) else None
        if not isinstance(promised, torch.Tensor) or self.env[node] is None:
            return super().output(node)
        if node not in self.result_index:
            self.result_index[node] = len(self.results)
            self.results.append(self.env[node])
        return Output(self.result_index[node])

    def effect(self, node: Node) -> tuple[Any, ...]:
        """There are none: torch is not there when the program runs."""
        raise UnsupportedOperator(
            f"{node.args[1]} has an effect outside of the program, which an exported one cannot "
            f"have{describe(node)}"
        )

    def check_errors(self, node: Node, info: ir.Value) -> None:
        """Nothing raises in an exported program: a singular matrix gives NaN."""

