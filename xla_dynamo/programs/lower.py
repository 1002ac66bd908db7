"""An ATen FX graph to a StableHLO module: its arguments, its nodes, its results."""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.dynamo.aot_metadata import IS_VIEW_OF_INPUT
from xla_dynamo.graphs.nodes import is_index, is_plain_effect, with_effects, writes_input
from xla_dynamo.graphs.output_views import memory_of, outputs_of_one_memory, replayed
from xla_dynamo.graphs.signatures import checked, no_rule
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.passes.channels_last import put_channels_last
from xla_dynamo.lowerings.passes.contraction_barriers import NOTHING, keep_results
from xla_dynamo.lowerings.passes.freeze import freeze
from xla_dynamo.lowerings.passes.guard_exponentials import guard_exponentials
from xla_dynamo.lowerings.passes.materialize import make_once
from xla_dynamo.lowerings.passes.matmul_precision import set_matmul_precision
from xla_dynamo.lowerings.passes.outline import separate
from xla_dynamo.lowerings.passes.split_reductions import reduce_in_parts
from xla_dynamo.lowerings.strided import flat_storage
from xla_dynamo.options import Options
from xla_dynamo.programs.layouts import Finish, OutputLayout, input_layout, output_layout
from xla_dynamo.programs.lower_nodes import GraphLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import Effect, Input, Mutation, Output, Program
from xla_dynamo.programs.saved_results import choose_strides, saved_layout
from xla_dynamo.torch_private import invert_perm

Node: TypeAlias = torch.fx.Node


def lower(
    gm: torch.fx.GraphModule,
    values: Mapping[Node, Any],
    platform: str,
    options: Options,
    static_inputs: frozenset[int] = frozenset(),
    *,
    trains: bool = False,
    saved: frozenset[int] = frozenset(),
    frozen: Collection[str] | None = None,
) -> Program:
    """Lower a graph whose nodes have the given fake values, of static sizes.

    `static_inputs` are the indices of the inputs that are parameters and buffers; `trains` says
    that the graph has a backward, or is one, and `saved` are the results that only the backward
    reads, whose strides may be chosen. Unless `frozen` is None, what depends on parameters
    and buffers alone is for another program, `Program.frozen`, or known under one of these keys.

    Raises:
        UnsupportedOperator: a node has no rule.
        LoweringError: a rule failed or emitted another type than the fake value's.
    """
    with make_ir_context(), ir.Location.unknown():
        lowering = _ProgramLowering(gm, values, ModuleBuilder(platform, options, trains))
        return lowering.run(static_inputs, saved, frozen)


class _ProgramLowering(GraphLowering):
    def __init__(
        self, gm: torch.fx.GraphModule, values: Mapping[Node, Any], builder: ModuleBuilder
    ) -> None:
        super().__init__(gm, values, builder)
        self.mutated: dict[Node, Node] = {}
        self.effects: list[Effect] = []
        self.input_index: dict[Node, int] = {}
        self.shared: dict[Node, Node] = {}
        self.results: list[ir.Value] = []
        self.result_index: dict[Any, int] = {}
        self.finishers: dict[int, Finish] = {}

    def run(
        self,
        static_inputs: frozenset[int],
        saved: frozenset[int],
        known: Collection[str] | None,
    ) -> Program:
        nodes, builder = list(self.gm.graph.nodes), self.builder
        placeholders = [node for node in nodes if node.op == "placeholder"]
        self.input_index = {node: index for index, node in enumerate(placeholders)}
        donated = self.donated()
        kept = [n for n in placeholders if n not in donated]
        fresh = [n for n in kept if self.input_index[n] not in static_inputs]
        static = [n for n in kept if self.input_index[n] in static_inputs]
        with ir.InsertionPoint(builder.block):
            given = [i for node in donated if (i := self.placeholder(node))]
            inputs = [i for node in fresh if (i := self.placeholder(node))]
            statics = [i for node in static if (i := self.placeholder(node))]
            self.lower_nodes()
            nothing = builder.constant_argument(NOTHING)
            self.shared = outputs_of_one_memory(nodes[-1].args[0], self.values)
            outputs = [self.output(value) for value in nodes[-1].args[0]]
            mutations = [
                Mutation(self.input_index[target], self.output(value))
                for target, value in self.mutated.items()
                if target not in donated
            ]
            self.results += [self.new_value(node) for node in donated]
            func.ReturnOp(self.results)
        on_cpu = builder.platform == "cpu"
        keep_results(builder.module, nothing, fuses=on_cpu)
        frozen = None
        if known is not None and not mutations and statics:
            first = len(given) + len(inputs)
            constants = {nothing: NOTHING}
            statics, frozen = freeze(
                builder.main, statics, first, constants, known, builder.platform
            )
        if not any(True for _ in nothing.uses):
            builder.drop_constant(nothing)
        if on_cpu:
            put_channels_last(builder.main)
        effects = [a for e in self.effects for a in (*e.args, *e.kwargs.values())]
        others = [*(mutation.output for mutation in mutations), *effects]
        chosen = choose_strides(builder.block, outputs, saved, others, self.finishers)
        builder.finish()
        builder.main.arg_attrs = self.aliases(len(donated))
        for module in [builder.module, *([frozen.module] if frozen and frozen.module else [])]:
            if on_cpu:
                guard_exponentials(module)
                reduce_in_parts(module)
                separate(module)
                make_once(module)
            else:  # XLA:CPU has float32 products alone
                set_matmul_precision(module, builder.options.matmul_precision)
        return Program(
            builder.module,
            given,
            inputs,
            statics,
            builder.constants,
            builder.draws > 0,
            outputs,
            mutations,
            self.effects,
            len(self.results),
            self.finishers,
            frozen,
            bool(builder.calls),
            chosen,
        )

    # --- arguments -----------------------------------------------------------------------------

    def placeholder(self, node: Node) -> Input | None:
        example = self.values[node]
        if not isinstance(example, torch.Tensor):
            self.env[node] = example
            return None
        if not node.users:
            return None
        if all(user.target is with_effects and user.args[0] is node for user in node.users):
            self.env[node] = None  # a token: it orders effects, and AOTAutograd passes None
            return None
        layout = saved_layout(node) or input_layout(example)
        shape = [example.shape[d] for d in layout.order]
        argument = checked(node, self.values, lambda: self.builder.argument(shape, example.dtype))
        self.env[node] = build.transpose(argument, invert_perm(layout.order))
        return Input(self.input_index[node], layout)

    def donated(self) -> list[Node]:
        """The inputs whose memory their new value can be written into: dense ones.

        None where an effect may raise at the end: inputs are changed after it, if at all. None on
        platforms where nobody has tried it.
        """
        if self.builder.platform != "cpu" or any(
            n.target is with_effects or n.kwargs.get("check_errors") for n in self.values
        ):
            return []
        written = [node.args[0] for node in self.gm.graph.nodes if writes_input(node)]
        return [n for n in dict.fromkeys(written) if input_layout(self.values[n]).is_dense]

    def new_value(self, node: Node) -> ir.Value:
        """What a donated input holds at the end, in the form of the input's argument."""
        example, value = self.values[node], self.env[self.mutated[node]]
        value = build.broadcast_to(build.cast(value, example.dtype), example.shape)
        return build.transpose(value, input_layout(example).order)

    def aliases(self, donated: int) -> ir.ArrayAttr:
        """Attributes of the arguments: the last results go where the first arguments were."""
        number = ir.IntegerType.get_signless(32)
        first = len(self.results) - donated
        alias = [
            {"tf.aliasing_output": ir.IntegerAttr.get(number, first + i)} for i in range(donated)
        ]
        none: list[dict[str, ir.Attribute]] = [{}] * (len(self.builder.block.arguments) - donated)
        return ir.ArrayAttr.get([ir.DictAttr.get(a) for a in (*alias, *none)])

    # --- nodes ---------------------------------------------------------------------------------

    def node(self, node: Node) -> Any:
        if writes_input(node):
            self.mutated[node.args[0]] = node.args[1]  # type: ignore[assignment, index]
            return self.env[node.args[1]]  # type: ignore[index]
        if node.target is with_effects:
            return self.effect(node)
        if is_index(node):  # a result may be a view at that place
            raise no_rule(node, self.values)
        return super().node(node)

    def check_errors(self, node: Node, info: ir.Value) -> None:
        """A factorization was asked to raise when LAPACK's info, its last result, is not 0."""
        self.results.append(info)
        api = "torch.linalg." + str(node.target).split("linalg_")[-1].removesuffix(".default")
        args = [Output(len(self.results) - 1), Output(number=api)]
        kwargs = {"is_matrix": Output(number=build.rank_of(info) == 0)}
        self.effects.append(Effect(torch.ops.aten._linalg_check_errors.default, args, kwargs))

    def effect(self, node: Node) -> tuple[Any, ...]:
        """torch.ops.higher_order.with_effects(token, op, ...): (token, the op's results)."""
        token, op, *args = node.args
        if not is_plain_effect(node):
            raise no_rule(node, self.values)
        outputs = [self.output(a) for a in args]
        kwargs = {name: self.output(a) for name, a in node.kwargs.items()}
        self.effects.append(Effect(op, outputs, kwargs))
        return (self.env[token], None)  # type: ignore[index]

    # --- results -------------------------------------------------------------------------------

    def output(self, node: Any) -> Output:
        if not isinstance(node, torch.fx.Node):
            return Output(number=node)
        promised = self.values.get(node)
        if not isinstance(promised, torch.Tensor) or self.env[node] is None:  # None: a token
            return Output(number=self.env[node])
        base = memory_of(node)
        is_view = IS_VIEW_OF_INPUT in node.meta
        if base in self.input_index and (is_view or base not in self.mutated):
            replay = None if base is node else replayed(node, self.env, as_view=is_view)
            return Output(input=self.input_index[base], replay=replay)
        root = self.shared.get(node, node)
        result = self.result(root)
        if root is node:
            return Output(result)
        offset = promised.storage_offset() - self.values[root].storage_offset()
        return Output(result, (tuple(promised.shape), tuple(promised.stride()), offset))

    def result(self, node: Node) -> int:
        """The index of the program result that is this node's value."""
        if node not in self.result_index:
            index = self.result_index[node] = len(self.results)
            layout = output_layout(self.values[node])
            self.results.append(self.arrange(self.env[node], self.values[node], layout))
            if layout.finish is not None:
                self.finishers[index] = layout.finish
        return self.result_index[node]

    def arrange(self, x: ir.Value, promised: torch.Tensor, layout: OutputLayout) -> ir.Value:
        """Bring a result into the form that crosses (see OutputLayout)."""
        if layout.overlapping:
            size, stride = tuple(promised.shape), tuple(promised.stride())
            return flat_storage(x, size, stride)
        for dim in layout.unexpanded:
            x = build.slice_dim(x, dim, 0, 1)
        return build.transpose(x, layout.order)
