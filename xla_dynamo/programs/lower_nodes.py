"""Lower the nodes of a graph to StableHLO at the insertion point, by one rule for each node."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir

from xla_dynamo.decompositions.tracing import traced
from xla_dynamo.errors import LoweringError, UnsupportedOperator
from xla_dynamo.graphs.nodes import assertion, attribute_of, generator_of, is_index
from xla_dynamo.graphs.signatures import checked, location, no_rule, refused, signature
from xla_dynamo.graphs.sizes import values_at
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings import find_refusal, find_rule
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.passes.contraction_barriers import mark_results
from xla_dynamo.lowerings.rules.random.random import key_of_step
from xla_dynamo.lowerings.table import REGISTERED_IN
from xla_dynamo.programs.module_builder import ModuleBuilder

Node: TypeAlias = torch.fx.Node


class GraphLowering:
    """A graph on its way into a module: the whole program's, or the body of a branch or loop.

    Attributes:
        gm: the graph.
        fake_values: the fake value of each node, of static sizes.
        env: what each node that has been lowered is in the module.
        steps: the numbers of the steps of the loops around it.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, fake_values: Mapping[Node, Any], builder: ModuleBuilder
    ) -> None:
        """Begin with no node lowered; inputs are put into `env` by the caller."""
        self.gm, self.fake_values, self.builder = gm, fake_values, builder
        self.env: dict[Node, Any] = {}
        self.steps: tuple[ir.Value, ...] = ()

    def lower_nodes(self) -> None:
        """Lower every node between the inputs and the output."""
        for node in self.gm.graph.nodes:
            if node.op not in ("placeholder", "output"):
                with location(node):
                    self.env[node] = self.node(node)

    def node(self, node: Node) -> Any:
        """Lower a node; returns its value in the module."""
        if node.op == "get_attr":
            attribute = attribute_of(node)
            if isinstance(attribute, torch.Tensor):
                return checked(
                    node, self.fake_values, lambda: self.builder.constant(node, attribute)
                )
            return attribute
        if node.target is operator.getitem:
            sequence, index = node.args
            return self.env[sequence][index]  # type: ignore[index]
        if is_index(node):
            return self.env[node.args[0]]  # type: ignore[index]
        promised = self.fake_values.get(node)
        if isinstance(promised, int | float | bool | complex):
            return promised  # arithmetic on sizes, already done
        if generator_of(node) is not None:
            why = "it draws from a generator of its own, which a compiled program does not have"
            raise refused(node, self.fake_values, why)
        if node.target is assertion:
            return None  # in the body of a branch or loop, which nothing can follow
        rule = find_rule(node.target)
        if rule is None:
            raise no_rule(node, self.fake_values)
        builder = self.builder
        operands = torch.fx.map_arg(node.args, self.fake_values.__getitem__)
        if refusal := find_refusal(node.target):
            named = torch.fx.map_arg(node.kwargs, self.fake_values.__getitem__)
            if reason := refusal(*operands, **named):
                raise refused(node, self.fake_values, reason)
        if isinstance(promised, torch.Tensor) and 0 in promised.shape:
            # There is nothing to compute, so rules need not handle it: amax of no complex number.
            return checked(
                node, self.fake_values, lambda: build.full(promised.shape, 0, promised.dtype)
            )
        ctx = builder.context(promised, operands, random_key=self.random_key, inline=self.inline)
        args = torch.fx.map_arg(node.args, self.env.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, self.env.__getitem__)
        result = self.checked(node, lambda: rule(ctx, *args, **kwargs))
        self.check_type(node, result, promised)
        mark_results(result)
        if node.kwargs.get("check_errors"):
            self.check_errors(node, result[-1])
        return result

    def checked(self, node: Node, emit: Callable[[], Any]) -> Any:
        """Run emit() with the user's line added to whatever it raises."""
        return checked(node, self.fake_values, emit)

    def check_errors(self, node: Node, info: ir.Value) -> None:
        """A factorization was asked to raise when `info` is not 0: not from within a program."""
        raise UnsupportedOperator(
            f"{signature(node, self.fake_values)} in the body of a branch or loop raises errors "
            f"that depend on values, which XLA cannot{describe(node)}"
        )

    def random_key(self) -> ir.Value:
        """A fresh key for a draw, of each step of the loops around it."""
        key = self.builder.random_key()
        for step in self.steps:
            key = key_of_step(key, step)
        return key

    def inline(
        self,
        body: torch.fx.GraphModule | Callable[..., Any],
        inputs: Sequence[Any],
        fakes: Sequence[Any],
        *,
        step: ir.Value | None = None,
    ) -> list[Any]:
        """Lower a graph inside this one where the insertion point is; returns its outputs.

        `body` may be a function of torch too. `inputs` are values and numbers, `fakes` the same as
        fake tensors and numbers. `step` is the number of the step, an int64, in a loop.
        """
        gm = body if isinstance(body, torch.fx.GraphModule) else traced(body, fakes)
        inner = GraphLowering(gm, values_at(gm, fakes), self.builder)
        inner.steps = self.steps if step is None else (*self.steps, step)
        placeholders = gm.graph.find_nodes(op="placeholder")
        inner.env.update(zip(placeholders, inputs, strict=True))
        inner.lower_nodes()
        outputs = gm.graph.output_node().args[0]
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        return [inner.env[n] if isinstance(n, torch.fx.Node) else n for n in outputs]

    def check_type(self, node: Node, result: Any, promised: Any) -> None:
        """Raise LoweringError unless a rule's result has the type of the node's fake value."""
        if isinstance(promised, tuple | list):
            for part, value in zip(promised, result, strict=True):
                self.check_type(node, value, part)
        elif isinstance(promised, torch.Tensor) and result is not None:
            wanted = tensor_type(tuple(promised.shape), promised.dtype)
            if result.type != wanted:
                raise LoweringError(
                    f"the rule of {signature(node, self.fake_values)} emitted {result.type} where "
                    f"the graph promises {wanted}{describe(node)}\n  This is a fault of the rule "
                    f"({REGISTERED_IN.get(str(node.target), '?')}), not of the model."
                )
