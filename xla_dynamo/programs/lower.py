"""An ATen FX graph to a program: its arguments, its nodes, its results, then the passes."""

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    is_updated_in_part,
    with_effects,
    writes_input,
)
from xla_dynamo.graphs.output_views import Memories, outputs_of_one_memory, view_steps
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.signatures import no_rule
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.kernels import tuning
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.strides import row_major, row_major_order
from xla_dynamo.lowerings.passes.call_packed import with_forms
from xla_dynamo.lowerings.passes.freeze import freeze
from xla_dynamo.lowerings.passes.integer_moves import BITS, as_bits
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.pack_weights import plan_calls
from xla_dynamo.lowerings.passes.result_permutations import allow_any_permutation
from xla_dynamo.lowerings.rules.shapes.strided import flat_storage
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
from xla_dynamo.programs.program import (
    Donated,
    Effect,
    Frozen,
    FrozenValue,
    Handles,
    Input,
    Mutation,
    NegativeZero,
    Output,
    Parameter,
    Program,
    Result,
    SymbolValues,
)
from xla_dynamo.programs.run_passes import run_passes
from xla_dynamo.programs.targets import target_of_plans
from xla_dynamo.torch_private import invert_perm

Node: TypeAlias = torch.fx.Node
_PLAIN = Result()


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
    Where forms of calls were measured for the target, the graph is lowered again by what they are.

    Raises:
        UnsupportedOperator: a node has no rule.
        LoweringError: a rule failed or emitted another type than the fake value's.
    """
    while True:
        with make_ir_context(), ir.Location.unknown():
            builder = ModuleBuilder(target, request)
            program = ProgramLowering(gm, fake_values, builder).run(frozen)
        if not (target.tunes and tuning.measure(builder.asked)):
            return program


class ProgramLowering(GraphLowering):
    """A whole graph on its way into a program.

    Attributes:
        symbols: how many dynamic sizes the program takes the values of, as an argument behind those
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
        self.result_slots: list[Result] = []
        self.result_index: dict[Any, int] = {}
        self.symbols = symbols
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
            self.take(donated, Donated)
            self.take([node for node in others if node not in static], Input)
            if self.symbols:
                slot = SymbolValues(len(self.input_index), InputLayout((0,)))
                builder.argument(slot, [self.symbols], torch.int32)
            self.take([node for node in others if node in static], Parameter)
            self.lower_nodes()
            self.shared = outputs_of_one_memory(self.with_memory(), self.fake_values, self.memories)
            self.outputs = tuple(self.output(value) for value in self.graph_results)
            self.mutations = tuple(
                Mutation(self.input_index[target], self.output(value))
                for target, value in self.mutated.items()
                if target not in donated
            )
            for node in donated:
                self.add_result(self.new_value(node), Result(donated=self.input_index[node]))
            func.ReturnOp(self.results)
        builder.finish()

    def finish(self, frozen: Collection[str] | None) -> Program:
        """Run the passes over the module that was written."""
        builder = self.builder
        before = builder.arguments
        roots = [number for number, slot in enumerate(before) if isinstance(slot, Parameter)]
        cut = None
        target = target_of_plans(builder.target, builder.main)
        if frozen is not None and not self.mutations and roots:
            cut = freeze(builder.main, roots, frozen, target)
        packed = plan_calls(builder.main, target) if cut is None else cut.packed
        arguments = list(before)
        if cut is not None:
            arguments = [slot for number, slot in enumerate(before) if number not in cut.unused]
            arguments += map(FrozenValue, cut.keys)
        builder.give_attributes(arguments, self.result_slots)
        if builder.target.partitions == 1 and not self.symbols:
            allow_any_permutation(builder.main, self.results_for_backward())
        notes = self.run_passes()
        of_cut = None
        if packed:
            arguments.append(Handles(with_forms(packed, notes)))
        if cut is not None and cut.module is not None:
            zero = run_passes(cut.module, builder.target, builder.observer()).takes_negative_zero
            read = [before[number] for number in cut.arguments]
            read += [NegativeZero()] * zero
            of_cut = Frozen(cut.module, tuple(read), tuple(cut.computed))
        arguments += [NegativeZero()] * notes.takes_negative_zero
        self.note_permutations(notes.permutations)
        return Program(
            module=builder.module,
            arguments=tuple(arguments),
            results=tuple(self.result_slots),
            outputs=self.outputs,
            mutations=self.mutations,
            effects=tuple(self.effects),
            frozen=of_cut,
            calls_torch=bool(builder.calls - collections.Counter(p.form.replaces for p in packed)),
            largest=self.largest(),
            mesh=tuple(builder.request.mesh.shape().items()) if builder.request.mesh else (),
            whole=builder.whole,
        )

    def run_passes(self) -> Notes:
        """Run the passes that are for the target over the module that was written."""
        return run_passes(self.builder.module, self.builder.target, self.builder.observer())

    # --- arguments -----------------------------------------------------------------------------

    def take(self, nodes: Iterable[Node], kind: type[Input]) -> None:
        """Give the program an argument for each of these inputs that it reads."""
        for node in nodes:
            self.take_one(node, kind)

    def take_one(self, node: Node, kind: type[Input]) -> None:
        """Give the program an argument for an input, if it reads the input."""
        example = self.fake_values[node]
        if not isinstance(example, torch.Tensor):
            self.env[node] = example
            return
        if not self.is_read(node):
            return
        if node.users and all(
            user.target is with_effects and user.args[0] is node for user in node.users
        ):
            self.env[node] = None  # a token: it orders effects, and AOTAutograd passes None
            return
        layout, index = self.layout(node), self.input_index[node]
        shape = [example.shape[d] for d in layout.permutation]
        sharding = self.builder.request.shardings.get(index)
        axes = sharding.permuted(layout.permutation).axes if sharding is not None else ()
        slot, dtype = kind(index, layout, axes), example.dtype
        if kind is Donated and self.is_moved(node):
            slot, dtype = Donated(index, layout, axes, as_bits=True), BITS
        value = self.checked(node, lambda: self.builder.argument(slot, shape, dtype))
        value = build.bitcast(value, example.dtype) if dtype is BITS else value
        self.env[node] = build.transpose(value, invert_perm(layout.permutation))

    def is_moved(self, node: Node) -> bool:
        """Whether a donated input's bits are updated in part; its buffer is nobody else's."""
        builder = self.builder
        if not builder.target.is_cpu or builder.request.placement is not None or self.symbols:
            return False
        return self.fake_values[node].dtype is torch.bfloat16 and is_updated_in_part(node)

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
        and none where the `Target` says so: on platforms where donation was never tried, and in a
        partitioned program, whose devices have shards of the inputs, or the same memory.
        """
        target = self.builder.target
        if not target.donates or any(map(acts_behind, self.fake_values)):
            return {}
        written = [node.args[0] for node in self.gm.graph.nodes if writes_input(node)]
        dense = (n for n in written if input_layout(self.fake_values[n]).is_dense)
        return dict.fromkeys(dense)

    def new_value(self, node: Node) -> ir.Value:
        """The final value of a donated input, permuted as the input's argument is."""
        example, value = self.fake_values[node], self.env[self.mutated[node]]
        value = build.broadcast_to(build.cast(value, example.dtype), example.shape)
        value = build.transpose(value, input_layout(example).permutation)
        return as_bits(value) if self.is_moved(node) else value

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
        number = self.add_result(info)
        api = "torch.linalg." + str(node.target).split("linalg_")[-1].removesuffix(".default")
        args = Output(number), Output(number=api)
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

        In a program of dynamic sizes, those that only the backward reads have memory of their own.
        """
        alone = self.builder.request.results_for_backward if self.symbols else ()
        return [node for number, node in enumerate(self.graph_results) if number not in alone]

    def result(self, node: Node) -> int:
        """The index of the program result that is this node's value."""
        if node not in self.result_index:
            promised = self.fake_values[node]
            layout = output_layout(promised)
            value = self.arrange(self.env[node], promised, layout)
            slot = Result(layout.restride, on_host=promised.device.type == "cpu")
            self.result_index[node] = self.add_result(value, slot)
        return self.result_index[node]

    def add_result(self, value: ir.Value, slot: Result = _PLAIN) -> int:
        """Give the program another result; returns its number."""
        self.results.append(value)
        self.result_slots.append(slot)
        return len(self.results) - 1

    def arrange(self, x: ir.Value, promised: torch.Tensor, layout: OutputLayout) -> ir.Value:
        """Bring a result into the form that crosses (see OutputLayout)."""
        if layout.overlapping:
            size, stride = tuple(promised.shape), tuple(promised.stride())
            return flat_storage(x, size, stride)
        for dim in layout.unexpanded:
            x = build.slice_dim(x, dim, 0, 1)
        return build.transpose(x, layout.permutation)

    def results_for_backward(self) -> set[int]:
        """The program's results that only the backward reads, once each: of any strides."""
        others = [mutation.output for mutation in self.mutations]
        others += [output for effect in self.effects for output in effect.outputs]
        uses = collections.Counter(output.result for output in (*self.outputs, *others))
        found = set()
        for number in self.builder.request.results_for_backward:
            output = self.outputs[number]
            index = output.result
            if index is None or output.view is not None or uses[index] > 1:
                continue
            if self.result_slots[index].restride is None:
                found.add(index)
        return found

    def note_permutations(self, permutations: Mapping[int, Sequence[int]]) -> None:
        """Note in the slots of the results which dimensions the passes have permuted."""
        *_, last = self.builder.block.operations
        for index, permutation in permutations.items():
            inner = last.operands[index].type.shape
            strides = row_major(inner)
            size = tuple(inner[dim] for dim in permutation)
            given = Restride(size, tuple(strides[dim] for dim in permutation))
            slot = self.result_slots[index]
            self.result_slots[index] = Result(given, is_permuted=True, on_host=slot.on_host)

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
