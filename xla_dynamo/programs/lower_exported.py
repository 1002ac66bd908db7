"""An ATen FX graph to a program that stands for itself: logical shapes, every output a result.

The programs of `lower` are bound to torch's tensors: a transposed weight enters as its memory lies,
a view of an input is made by torch. Whoever runs an exported program has arrays and no strides.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.graphs.nodes import is_number
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.signatures import no_rule
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings import find_rule
from xla_dynamo.lowerings.passes.composites import mark, outline_composites
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.custom_calls import custom_call
from xla_dynamo.programs.layouts import InputLayout
from xla_dynamo.programs.lower import ProgramLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import Output, Program
from xla_dynamo.torch_private import OpOverload

Node: TypeAlias = torch.fx.Node


def lower_exported(
    gm: torch.fx.GraphModule,
    fake_values: Mapping[Node, Any],
    target: Target,
    request: Request,
    custom_ops: Collection[str] = (),
) -> Program:
    """Lower a graph whose nodes have the given fake values, of static sizes.

    Operators without a rule whose namespace is among `custom_ops` become custom calls.

    Raises:
        UnsupportedOperator: a node has no rule, or an effect that only torch has.
        LoweringError: a rule failed or emitted another type than the fake value's.
    """
    with make_ir_context(), ir.Location.unknown():
        builder = ModuleBuilder(target, request)
        lowering = ExportedLowering(gm, fake_values, builder, custom_ops)
        return lowering.run(None)


class ExportedLowering(ProgramLowering):
    """A graph on its way into a program without strides, views of inputs and donations."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        fake_values: Mapping[Node, Any],
        builder: ModuleBuilder,
        custom_ops: Collection[str] = (),
    ) -> None:
        """Begin with no node lowered."""
        super().__init__(gm, fake_values, builder)
        self.custom_ops = custom_ops

    def node(self, node: Node) -> Any:
        """Lower a node: a mark as a mark, what has no rule as a custom call where that is allowed.

        Raises:
            UnsupportedOperator: it is not.
        """
        op = node.target
        if str(op) == "xla.mark_tensor.default":
            values = torch.fx.map_arg(node.args, self.env.__getitem__)
            return mark(*values, **node.kwargs)
        if not isinstance(op, OpOverload) or find_rule(op) is not None or is_number(node):
            return super().node(node)
        if op.namespace not in self.custom_ops:
            raise UnsupportedOperator(
                f"{no_rule(node, self.fake_values)}\n  or export it as a custom call: "
                f"StableHLOExportOptions(custom_ops_allowed_in_graph={{{op.namespace!r}}})"
            )
        return self.checked(node, lambda: custom_call(node, self.env, self.fake_values[node]))

    def run_passes(self) -> Notes:
        """Run the passes, then make the marked regions composites."""
        notes = super().run_passes()
        outline_composites(self.builder.module)
        return notes

    def donated(self) -> dict[Node, None]:
        """None: new values of inputs are results."""
        return {}

    def is_read(self, node: Node) -> bool:
        """Weights only if they have users, but all inputs: a caller relies on the signature."""
        is_weight = self.input_index[node] in self.builder.request.static_inputs
        return bool(node.users) or not is_weight

    def layout(self, node: Node) -> InputLayout:
        """Row-major, in the order of the dimensions."""
        return InputLayout(tuple(range(self.fake_values[node].ndim)))

    def output(self, node: Any) -> Output:
        """A result for each tensor, views of inputs included."""
        promised = self.fake_values.get(node) if isinstance(node, torch.fx.Node) else None
        if not isinstance(promised, torch.Tensor) or self.env[node] is None:
            return super().output(node)
        if node not in self.result_index:
            self.result_index[node] = self.add_result(self.env[node])
        return Output(self.result_index[node])

    def effect(self, node: Node) -> tuple[Any, ...]:
        """There are none: torch is not there when the program runs.

        A check of what LAPACK found is left out: a singular matrix gives NaN or infinity.
        """
        if node.args[1] is torch.ops.aten._linalg_check_errors.default:
            return (None, None)
        raise UnsupportedOperator(
            f"{node.args[1]} has an effect outside of the program, which an exported one cannot "
            f"have{describe(node)}"
        )

    def check_errors(self, node: Node, info: ir.Value) -> None:
        """Nothing raises in an exported program: a singular matrix gives NaN."""
