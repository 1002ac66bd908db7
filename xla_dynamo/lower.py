"""An ATen FX graph to a StableHLO module: one pass over the nodes, one rule a node."""

import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.errors import LoweringError, UnsupportedDtype, UnsupportedOperator, XlaDynamoError
from xla_dynamo.layouts import Finish, OutputLayout, at_offset, input_layout, output_layout
from xla_dynamo.lowerings import Context, build, find_rule
from xla_dynamo.lowerings.dtypes import dtype_name, tensor_type
from xla_dynamo.lowerings.strided import flat_storage
from xla_dynamo.lowerings.strides import inverse
from xla_dynamo.lowerings.table import REGISTERED_IN
from xla_dynamo.matmul_precision import set_matmul_precision
from xla_dynamo.nodes import generator_of, is_plain_effect, with_effects, writes_input
from xla_dynamo.options import Options
from xla_dynamo.output_views import memory_of, outputs_of_one_memory, replayed
from xla_dynamo.program import Constant, Effect, Input, Mutation, Output, Program
from xla_dynamo.source_lines import describe, source_line

Node: TypeAlias = torch.fx.Node
# What stands between a literal, as in torch.tensor([1, 2]), and those who use it.
_LITERALS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)


def lower(
    gm: torch.fx.GraphModule,
    values: Mapping[Node, Any],
    platform: str,
    options: Options,
    static_inputs: frozenset[int] = frozenset(),
) -> Program:
    """Lower a graph whose nodes have the given fake values, of static sizes.

    `static_inputs` are the indices of the inputs that are parameters and buffers.

    Raises:
        UnsupportedOperator: a node has no rule.
        LoweringError: a rule failed or emitted another type than the fake value's.
    """
    with make_ir_context(), ir.Location.unknown():
        return _Lowering(gm, values, platform, options).run(static_inputs)


class _Lowering:
    def __init__(
        self, gm: torch.fx.GraphModule, values: Mapping[Node, Any], platform: str, options: Options
    ) -> None:
        self.gm, self.values, self.platform, self.options = gm, values, platform, options
        self.module = ir.Module.create()
        self.env: dict[Node, Any] = {}
        self.constants: list[Constant] = []
        self.mutated: dict[Node, Node] = {}
        self.effects: list[Effect] = []
        self.input_index: dict[Node, int] = {}
        self.functions: dict[Any, Any] = {}
        self.seed: ir.Value | None = None
        self.draws = 0
        self.shared: dict[Node, Node] = {}
        self.results: list[ir.Value] = []
        self.result_index: dict[Any, int] = {}
        self.finishers: dict[int, Finish] = {}

    def run(self, static_inputs: frozenset[int]) -> Program:
        nodes = list(self.gm.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        self.input_index = {node: index for index, node in enumerate(placeholders)}
        donated = self.donated()
        kept = [n for n in placeholders if n not in donated]
        fresh = [n for n in kept if self.input_index[n] not in static_inputs]
        static = [n for n in kept if self.input_index[n] in static_inputs]
        with ir.InsertionPoint(self.module.body):
            main = func.FuncOp("main", ([], []), visibility="public")
        self.block = main.add_entry_block()
        with ir.InsertionPoint(self.block):
            given = [i for node in donated if (i := self.placeholder(node))]
            inputs = [i for node in fresh if (i := self.placeholder(node))]
            statics = [i for node in static if (i := self.placeholder(node))]
            for node in nodes:
                if node.op not in ("placeholder", "output"):
                    with _location(node):
                        self.env[node] = self.node(node)
            self.shared = outputs_of_one_memory(nodes[-1].args[0], self.values)
            outputs = [self.output(value) for value in nodes[-1].args[0]]
            mutations = [
                Mutation(self.input_index[target], self.output(value))
                for target, value in self.mutated.items()
                if target not in donated
            ]
            self.results += [self.new_value(node) for node in donated]
            func.ReturnOp(self.results)
        self.order_arguments()
        types = ir.FunctionType.get(
            [a.type for a in self.block.arguments], [r.type for r in self.results]
        )
        main.attributes["function_type"] = ir.TypeAttr.get(types)
        main.arg_attrs = self.aliases(len(donated))
        if self.platform != "cpu":  # XLA:CPU has float32 products alone
            set_matmul_precision(self.module, self.options.matmul_precision)
        return Program(
            self.module,
            given,
            inputs,
            statics,
            self.constants,
            self.draws > 0,
            outputs,
            mutations,
            self.effects,
            len(self.results),
            self.finishers,
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
        layout = input_layout(example)
        shape = [example.shape[d] for d in layout.order]
        argument = self.block.add_argument(
            _checked(node, lambda: tensor_type(shape, example.dtype)), ir.Location.unknown()
        )
        self.env[node] = build.transpose(argument, inverse(layout.order))
        return Input(self.input_index[node], layout)

    def donated(self) -> list[Node]:
        """The inputs whose memory their new value can be written into: dense ones.

        None where an effect may raise at the end: inputs are changed after it, if at all. None on
        platforms where nobody has tried it.
        """
        if self.platform != "cpu" or any(
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
        none: list[dict[str, ir.Attribute]] = [{}] * (len(self.block.arguments) - donated)
        return ir.ArrayAttr.get([ir.DictAttr.get(a) for a in (*alias, *none)])

    def constant(self, node: Node, tensor: torch.Tensor) -> ir.Value:
        """A tensor of the graph: a literal, or one that the user's code holds and may change."""
        tensor = tensor.detach()
        literal = all(user.target in _LITERALS for user in node.users)
        small = tensor.numel() <= self.options.constant_limit and tensor.device.type == "cpu"
        if literal and small and not tensor.dtype.is_complex:
            if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
                wide = build.array(tensor.float().tolist(), torch.float32)
                return build.cast(build.reshape(wide, tensor.shape), tensor.dtype)
            return build.reshape(build.array(tensor.tolist(), tensor.dtype), tensor.shape)
        self.constants.append(Constant(tensor, literal))
        type_ = tensor_type(tensor.shape, tensor.dtype)
        return self.block.add_argument(type_, ir.Location.unknown())

    def random_key(self) -> ir.Value:
        if self.seed is None:
            type_ = tensor_type([1], torch.uint64)
            self.seed = self.block.add_argument(type_, ir.Location.unknown())
        self.draws += 1
        return build.concatenate([self.seed, build.full([1], self.draws, torch.uint64)], 0)

    def order_arguments(self) -> None:
        """The seed may have become an argument before the last constant: put it last."""
        if self.seed is None:
            return
        number = self.seed.arg_number
        last = self.block.add_argument(self.seed.type, ir.Location.unknown())
        self.seed.replace_all_uses_with(last)
        self.block.erase_argument(number)

    # --- nodes ---------------------------------------------------------------------------------

    def node(self, node: Node) -> Any:
        if node.op == "get_attr":
            attribute = operator.attrgetter(str(node.target))(self.gm)
            if isinstance(attribute, torch.Tensor):
                return _checked(node, lambda: self.constant(node, attribute))
            return attribute
        if node.target is operator.getitem:
            sequence, index = node.args
            return self.env[sequence][index]  # type: ignore[index]
        promised = self.values.get(node)
        if isinstance(promised, int | float | bool | complex):
            return promised  # arithmetic on sizes, already done
        if writes_input(node):
            self.mutated[node.args[0]] = node.args[1]  # type: ignore[assignment, index]
            return self.env[node.args[1]]  # type: ignore[index]
        if node.target is with_effects:
            return self.effect(node)
        if generator_of(node) is not None:
            raise UnsupportedOperator(
                f"{self.signature(node)} draws from a generator of its own, which a compiled "
                f'program does not have{describe(node)}\n  options={{"fallback": "eager"}} runs '
                "it in torch"
            )
        rule = find_rule(node.target)
        if rule is None:
            raise self.no_rule(node)
        operands = torch.fx.map_arg(node.args, self.values.__getitem__)
        ctx = Context(
            promised, operands, self.platform, self.module, self.functions, self.random_key
        )
        args = torch.fx.map_arg(node.args, self.env.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, self.env.__getitem__)
        result = _checked(node, lambda: rule(ctx, *args, **kwargs), self.signature)
        self.check_type(node, result, promised)
        if node.kwargs.get("check_errors"):
            self.check_errors(node, result[-1])
        return result

    def check_errors(self, node: Node, info: ir.Value) -> None:
        """A factorization was asked to raise when LAPACK's info, its last result, is not 0."""
        self.results.append(info)
        api = "torch.linalg." + _name(node).split("linalg_")[-1].removesuffix(".default")
        args = [Output(len(self.results) - 1), Output(number=api)]
        kwargs = {"is_matrix": Output(number=build.rank_of(info) == 0)}
        self.effects.append(Effect(torch.ops.aten._linalg_check_errors.default, args, kwargs))

    def effect(self, node: Node) -> tuple[Any, ...]:
        """torch.ops.higher_order.with_effects(token, op, ...): (token, the op's results)."""
        token, op, *args = node.args
        if not is_plain_effect(node):
            raise self.no_rule(node)
        outputs = [self.output(a) for a in args]
        kwargs = {name: self.output(a) for name, a in node.kwargs.items()}
        self.effects.append(Effect(op, outputs, kwargs))
        return (self.env[token], None)  # type: ignore[index]

    def check_type(self, node: Node, result: Any, promised: Any) -> None:
        if isinstance(promised, tuple | list):
            for part, value in zip(promised, result, strict=True):
                self.check_type(node, value, part)
        elif isinstance(promised, torch.Tensor) and result is not None:
            wanted = tensor_type(tuple(promised.shape), promised.dtype)
            if result.type != wanted:
                raise LoweringError(
                    f"the rule of {self.signature(node)} emitted {result.type} where the graph "
                    f"promises {wanted}{describe(node)}\n  This is a fault of the rule "
                    f"({REGISTERED_IN.get(str(node.target), '?')}), not of the model."
                )

    def signature(self, node: Node) -> str:
        def show(argument: Any) -> str:
            if isinstance(argument, torch.fx.Node):
                value = self.values.get(argument)
                return argument.name if value is None else _short_type(value)
            if isinstance(argument, list | tuple):
                return "[" + ", ".join(map(show, argument)) + "]"
            return repr(argument)

        shown = [show(a) for a in node.args]
        shown += [f"{key}={show(a)}" for key, a in node.kwargs.items()]
        return f"{_name(node)}({', '.join(shown)})"

    def no_rule(self, node: Node) -> UnsupportedOperator:
        from torch._decomp import decomposition_table

        if node.target in decomposition_table:
            advice = "PyTorch has a decomposition: add it to xla_dynamo/decompositions.py"
        else:
            advice = "give it a rule with @xla_dynamo.lowers(op)"
        return UnsupportedOperator(
            f"no lowering for {self.signature(node)}{describe(node)}\n"
            f"  {advice}\n  (docs/adding-a-lowering.md)"
        )

    # --- results -------------------------------------------------------------------------------

    def output(self, node: Any) -> Output:
        if not isinstance(node, torch.fx.Node):
            return Output(number=node)
        promised = self.values.get(node)
        if not isinstance(promised, torch.Tensor) or self.env[node] is None:  # None: a token
            return Output(number=self.env[node])
        base = memory_of(node)
        if base in self.input_index and base not in self.mutated:
            replay = None if base is node else replayed(node, self.env)
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
            finish, offset = layout.finish, self.values[node].storage_offset()
            if offset and memory_of(node) in self.mutated.values():
                # AOTAutograd reads off a view of an input's new value where in the input it lies.
                finish = at_offset(finish, offset)
            if finish is not None:
                self.finishers[index] = finish
        return self.result_index[node]

    def arrange(self, x: ir.Value, promised: torch.Tensor, layout: OutputLayout) -> ir.Value:
        """Bring a result into the form that crosses (see OutputLayout)."""
        if layout.overlapping:
            size, stride = tuple(promised.shape), tuple(promised.stride())
            return flat_storage(x, size, stride)
        for dim in layout.unexpanded:
            x = build.slice_dim(x, dim, 0, 1)
        return build.transpose(x, layout.order)


def _location(node: Node) -> ir.Location:
    line = source_line(node)
    if line is None:
        return ir.Location.name(node.name)
    return ir.Location.name(node.name, ir.Location.file(line.file, line.line, 0))


def _name(node: Node) -> str:
    return str(node.target)


def _checked(node: Node, emit: Any, signature: Any = _name) -> Any:
    """Run emit() with the user's line added to whatever it raises."""
    try:
        return emit()
    except UnsupportedDtype as error:
        raise UnsupportedDtype(f"{signature(node)}: {error}{describe(node)}") from error
    except XlaDynamoError as error:
        raise type(error)(f"{error}{describe(node)}") from error
    except Exception as error:
        raise LoweringError(
            f"the rule of {signature(node)} failed: {type(error).__name__}: {error}{describe(node)}"
        ) from error


_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def _short_type(value: Any) -> str:
    """f32[8,3] for a tensor, as MLIR and JAX print them."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    name = dtype_name(value.dtype)
    stem = name.rstrip("0123456789")
    short = _SHORT[stem] + name[len(stem) :] if stem in _SHORT else name
    return f"{short}[{','.join(str(n) for n in value.shape)}]"
