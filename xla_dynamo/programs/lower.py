"""An ATen FX graph to a program: its arguments, its nodes, its results, then the passes."""

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.graphs.nodes import (
    acts_behind,
    assertion,
    is_index,
    is_plain_effect,
    with_effects,
    writes_input,
)
from xla_dynamo.graphs.output_views import Memories, outputs_of_one_memory, view_steps
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.signatures import no_rule
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.shardings import sharding_attribute
from xla_dynamo.lowerings.builders.strides import row_major, row_major_order
from xla_dynamo.lowerings.passes.call_packed import with_forms
from xla_dynamo.lowerings.passes.freeze import freeze
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.result_permutations import allow_any_permutation
from xla_dynamo.lowerings.strided import flat_storage
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.layouts import (
    InputLayout,
    OutputLayout,
    Restride,
    input_layout,
    output_layout,
)
from xla_dynamo.programs.lower_nodes import GraphLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import Effect, Frozen, Input, Mutation, Output, Program
from xla_dynamo.programs.run_passes import run_passes
from xla_dynamo.torch_private import invert_perm

Node: TypeAlias = torch.fx.Node


def lower(
    gm: torch.fx.GraphModule,
    fake_values: Mapping[Node, Any],
    target: Target,
    request: Request,
    frozen: Collection[str] | None = None,
) -> Program:
    """Lower a graph whose nodes have the given fake values, of static sizes.

    Unless `frozen` is None, the values that depend on parameters and buffers alone are computed by
    another program, `Program.frozen`, or are known already under one of the keys in `frozen`.

    Raises:
        UnsupportedOperator: a node has no rule.
        LoweringError: a rule failed or emitted another type than the fake value's.
    """
    with make_ir_context(), ir.Location.unknown():
        return ProgramLowering(gm, fake_values, ModuleBuilder(target, request)).run(frozen)


class ProgramLowering(GraphLowering):
    """A whole graph on its way into a program.

    Attributes:
        symbols: how many open sizes the program takes the values of, as an argument behind those
            of its inputs, i32[symbols]; 0 for a program without.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        fake_values: Mapping[Node, Any],
        builder: ModuleBuilder,
        symbols: int = 0,
    ) -> None:
        """Begin with no node lowered."""
        super().__init__(gm, fake_values, builder)
        self.graph_results: Any = gm.graph.output_node().args[0]
        views = builder.request.views_of_inputs
        self.views_of_inputs = {self.graph_results[index] for index in views}
        self.mutated: dict[Node, Node] = {}
        self.effects: list[Effect] = []
        placeholders = gm.graph.find_nodes(op="placeholder")
        self.input_index: dict[Node, int] = {node: i for i, node in enumerate(placeholders)}
        self.memories = Memories()
        self.shared: dict[Node, Node] = {}
        self.results: list[ir.Value] = []
        self.result_index: dict[Any, int] = {}
        self.restrides: dict[int, Restride] = {}
        self.host_results: set[int] = set()
        self.symbols = symbols
        self.donations: list[Input] = []
        self.inputs: list[Input] = []
        self.static_inputs: list[Input] = []
        self.outputs: tuple[Output, ...] = ()
        self.mutations: tuple[Mutation, ...] = ()

    def run(self, frozen: Collection[str] | None) -> Program:
        """Write the module, and run the passes over it."""
        self.write()
        return self.finish(frozen)

    def write(self) -> None:
        """Write the module as the rules emit it."""
        builder, request = self.builder, self.builder.request
        donated = self.donated()
        others = [node for node in self.input_index if node not in donated]
        static = {n for n in others if self.input_index[n] in request.static_inputs}
        with ir.InsertionPoint(builder.block):
            self.donations = self.arguments(donated)
            self.inputs = self.arguments([node for node in others if node not in static])
            if self.symbols:
                builder.argument([self.symbols], torch.int32)
                self.inputs.append(Input(len(self.input_index), InputLayout((0,))))
            self.static_inputs = self.arguments([node for node in others if node in static])
            self.lower_nodes()
            self.shared = outputs_of_one_memory(self.with_memory(), self.fake_values, self.memories)
            self.outputs = tuple(self.output(value) for value in self.graph_results)
            self.mutations = tuple(
                Mutation(self.input_index[target], self.output(value))
                for target, value in self.mutated.items()
                if target not in donated
            )
            self.results += [self.new_value(node) for node in donated]
            func.ReturnOp(self.results)
        builder.finish()

    def finish(self, frozen: Collection[str] | None) -> Program:
        """Run the passes over the module that was written."""
        builder, request = self.builder, self.builder.request
        donations, inputs, statics = self.donations, self.inputs, self.static_inputs
        outputs, mutations = self.outputs, self.mutations
        cut = None
        if frozen is not None and not mutations and statics:
            first = len(donations) + len(inputs)
            roots = range(first, first + len(statics))
            before = dict(zip(roots, statics, strict=True))
            if (cut := freeze(builder.main, roots, frozen, builder.target)) is not None:
                statics = [i for number, i in before.items() if number not in cut.unused]
        builder.main.arg_attrs = self.argument_attributes(
            len(donations), [given.axes for given in (*donations, *inputs, *statics)]
        )
        if builder.target.partitions == 1 and not self.symbols:
            allow_any_permutation(builder.main, self.results_for_backward(outputs, mutations))
        notes = self.run_passes()
        of_cut = None
        if cut is not None:
            needs_zero = False
            if cut.module is not None:
                needs_zero = run_passes(cut.module, builder.target).takes_negative_zero
            read = tuple(before[number] for number in cut.arguments)
            packed = with_forms(cut.packed, notes)
            keys, computed = tuple(cut.keys), tuple(cut.computed)
            of_cut = Frozen(keys, cut.module, read, computed, needs_zero, packed)
        return Program(
            module=builder.module,
            donations=tuple(donations),
            inputs=tuple(inputs),
            static_inputs=tuple(statics),
            constants=tuple(builder.constants),
            uses_rng=builder.uses_rng,
            frozen=of_cut,
            takes_negative_zero=notes.takes_negative_zero,
            results=len(self.results),
            outputs=outputs,
            mutations=mutations,
            effects=tuple(self.effects),
            restrides=self.restrides,
            host_results=tuple(sorted(self.host_results)),
            calls_torch=bool(builder.calls),
            chosen_strides=self.chosen_strides(outputs, notes),
            largest=self.largest(),
            mesh=tuple(request.mesh.shape().items()) if request.mesh is not None else (),
        )

    def run_passes(self) -> Notes:
        """Run the passes that are for the target over the module that was written."""
        return run_passes(self.builder.module, self.builder.target)

    # --- arguments -----------------------------------------------------------------------------

    def arguments(self, nodes: Collection[Node]) -> list[Input]:
        """Give the program an argument for each input that it reads."""
        return [given for node in nodes if (given := self.argument(node)) is not None]

    def argument(self, node: Node) -> Input | None:
        example = self.fake_values[node]
        if not isinstance(example, torch.Tensor):
            self.env[node] = example
            return None
        if not self.is_read(node):
            return None
        if node.users and all(
            user.target is with_effects and user.args[0] is node for user in node.users
        ):
            self.env[node] = None  # a token: it orders effects, and AOTAutograd passes None
            return None
        layout, index = self.layout(node), self.input_index[node]
        shape = [example.shape[d] for d in layout.permutation]
        argument = self.checked(node, lambda: self.builder.argument(shape, example.dtype))
        self.env[node] = build.transpose(argument, invert_perm(layout.permutation))
        sharding = self.builder.request.shardings.get(index)
        axes = sharding.permuted(layout.permutation).axes if sharding is not None else ()
        return Input(index, layout, axes)

    def is_read(self, node: Node) -> bool:
        """Whether an input is to be an argument of the program."""
        return bool(node.users)

    def layout(self, node: Node) -> InputLayout:
        """How an input enters the program."""
        example = self.fake_values[node]
        stride = self.builder.request.input_strides.get(self.input_index[node])
        if stride is None:
            return input_layout(example)
        # A hook at saved tensors may have changed the strides since: so the tensor may be copied.
        permutation = row_major_order(example.shape, stride) or range(example.ndim)
        return InputLayout(tuple(permutation), is_dense=False)

    def donated(self) -> dict[Node, None]:
        """The inputs into whose memory their new value can be written: dense ones.

        There are none if an effect may raise at the end, since inputs may change only after it,
        none on platforms where donation was never tried, and none in a divided program: its devices
        have pieces of the inputs, or the same memory.
        """
        target = self.builder.target
        if not target.is_cpu or target.partitions > 1 or any(map(acts_behind, self.fake_values)):
            return {}
        written = [node.args[0] for node in self.gm.graph.nodes if writes_input(node)]
        dense = (n for n in written if input_layout(self.fake_values[n]).is_dense)
        return dict.fromkeys(dense)

    def new_value(self, node: Node) -> ir.Value:
        """The final value of a donated input, permuted as the input's argument is."""
        example, value = self.fake_values[node], self.env[self.mutated[node]]
        value = build.broadcast_to(build.cast(value, example.dtype), example.shape)
        return build.transpose(value, input_layout(example).permutation)

    def argument_attributes(
        self, donated: int, axes: Sequence[Sequence[Sequence[str]]]
    ) -> ir.ArrayAttr:
        """Attributes of the arguments: the first ones have the last results for aliases.

        In a program for several devices each says how it is divided.
        """
        arguments = self.builder.block.arguments
        attributes: list[dict[str, ir.Attribute]] = [{} for _ in arguments]
        number = ir.IntegerType.get_signless(32)
        first = len(self.results) - donated
        for i in range(donated):
            attributes[i]["tf.aliasing_output"] = ir.IntegerAttr.get(number, first + i)
        if self.builder.request.mesh is not None:
            for i, argument in enumerate(arguments):
                given = axes[i] if i < len(axes) else ()
                given = given or [()] * build.rank_of(argument)
                attributes[i]["sdy.sharding"] = sharding_attribute(given)
        return ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])

    # --- nodes ---------------------------------------------------------------------------------

    def node(self, node: Node) -> Any:
        if writes_input(node):
            self.mutated[node.args[0]] = node.args[1]  # type: ignore[assignment, index]
            return self.env[node.args[1]]  # type: ignore[index]
        if node.target is with_effects:
            return self.effect(node)
        if node.target is assertion:
            args = tuple(self.output(a) for a in node.args)
            self.effects.append(Effect(assertion, args, {}))
            return None
        if is_index(node):  # a result may be a view at that index
            raise no_rule(node, self.fake_values)
        return super().node(node)

    def check_errors(self, node: Node, info: ir.Value) -> None:
        """A factorization was asked to raise when LAPACK's info, its last result, is not 0."""
        self.results.append(info)
        api = "torch.linalg." + str(node.target).split("linalg_")[-1].removesuffix(".default")
        args = Output(len(self.results) - 1), Output(number=api)
        kwargs = {"is_matrix": Output(number=build.rank_of(info) == 0)}
        self.effects.append(Effect(torch.ops.aten._linalg_check_errors.default, args, kwargs))

    def effect(self, node: Node) -> tuple[Any, ...]:
        """torch.ops.higher_order.with_effects(token, op, ...): (token, the op's results)."""
        token, op, *args = node.args
        if not is_plain_effect(node):
            raise no_rule(node, self.fake_values)
        outputs = tuple(self.output(a) for a in args)
        kwargs = {name: self.output(a) for name, a in node.kwargs.items()}
        self.effects.append(Effect(op, outputs, kwargs))
        return (self.env[token], None)  # type: ignore[index]

    # --- results -------------------------------------------------------------------------------

    def output(self, node: Any) -> Output:
        if not isinstance(node, torch.fx.Node):
            return Output(number=node)
        promised = self.fake_values.get(node)
        if not isinstance(promised, torch.Tensor) or self.env[node] is None:  # None: a token
            return Output(number=self.env[node])
        base = self.memories.of(node)
        is_view = node in self.views_of_inputs
        if base in self.input_index and (is_view or base not in self.mutated):
            replay = () if base is node else view_steps(node, self.env)
            return Output(input=self.input_index[base], replay=replay, as_view=is_view)
        root = self.shared.get(node, node)
        result = self.result(root)
        if root is node:
            return Output(result)
        offset = promised.storage_offset() - self.fake_values[root].storage_offset()
        return Output(result, (tuple(promised.shape), tuple(promised.stride()), offset))

    def with_memory(self) -> list[Any]:
        """The outputs that share memory where eager's do.

        In a program of open sizes, those that only the backward reads have memory of their own.
        """
        alone = self.builder.request.results_for_backward if self.symbols else ()
        return [node for number, node in enumerate(self.graph_results) if number not in alone]

    def result(self, node: Node) -> int:
        """The index of the program result that is this node's value."""
        if node not in self.result_index:
            index = self.result_index[node] = len(self.results)
            layout = output_layout(self.fake_values[node])
            self.results.append(self.arrange(self.env[node], self.fake_values[node], layout))
            if self.fake_values[node].device.type == "cpu":
                self.host_results.add(index)
            if layout.restride is not None:
                self.restrides[index] = layout.restride
        return self.result_index[node]

    def arrange(self, x: ir.Value, promised: torch.Tensor, layout: OutputLayout) -> ir.Value:
        """Bring a result into the form that crosses (see OutputLayout)."""
        if layout.overlapping:
            size, stride = tuple(promised.shape), tuple(promised.stride())
            return flat_storage(x, size, stride)
        for dim in layout.unexpanded:
            x = build.slice_dim(x, dim, 0, 1)
        return build.transpose(x, layout.permutation)

    def results_for_backward(
        self, outputs: Sequence[Output], mutations: Sequence[Mutation]
    ) -> set[int]:
        """The program's results that only the backward reads, once each: of any strides."""
        others = [mutation.output for mutation in mutations]
        others += [output for effect in self.effects for output in effect.outputs]
        uses = collections.Counter(output.result for output in (*outputs, *others))
        found = set()
        for number in self.builder.request.results_for_backward:
            output = outputs[number]
            index = output.result
            if index is not None and output.view is None and uses[index] == 1:
                found.add(index)
        return found - self.restrides.keys()

    def chosen_strides(self, outputs: Sequence[Output], notes: Notes) -> dict[int, tuple[int, ...]]:
        """The strides of outputs, by number, whose results the passes have permuted."""
        chosen = {}
        numbers = {output.result: number for number, output in enumerate(outputs)}
        *_, last = self.builder.block.operations
        for index, permutation in notes.permutations.items():
            inner = last.operands[index].type.shape
            strides = row_major(inner)
            size = tuple(inner[dim] for dim in permutation)
            stride = chosen[numbers[index]] = tuple(strides[dim] for dim in permutation)
            self.restrides[index] = Restride(size, stride)
        return chosen

    def largest(self) -> tuple[int, str] | None:
        """The largest tensor of the graph, for messages: its bytes, and where the user made it."""
        tensors = [(n, v) for n, v in self.fake_values.items() if isinstance(v, torch.Tensor)]
        made = [(n, v) for n, v in tensors if n.op == "call_function"] or tensors
        if not made:
            return None
        node, value = max(made, key=lambda pair: _bytes(pair[1]))
        return _bytes(value), describe(node)


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.dtype.itemsize
