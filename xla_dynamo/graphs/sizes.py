"""Graphs with symbolic sizes: the fake value of every node at concrete sizes."""

import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from xla_dynamo.graphs.nodes import attribute_of, through_storage
from xla_dynamo.graphs.output_views import Memories
from xla_dynamo.torch_private import FakeTensor, FakeTensorMode

Node: TypeAlias = torch.fx.Node


def is_symbolic(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph was traced with sizes left dynamic."""
    return any(has_symbols(n.meta.get("val")) for n in gm.graph.find_nodes(op="placeholder"))


def has_symbols(value: Any) -> bool:
    """Whether a fake value is a number left dynamic, or a tensor of such sizes or strides."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    if not isinstance(value, torch.Tensor):
        return False
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return any(isinstance(n, torch.SymInt) for n in numbers)


def write_out_products(gm: torch.fx.GraphModule) -> None:
    """Give the products of more than two sizes, as torch writes some, a node for each factor."""
    for module in (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)):
        for op in (operator.mul, operator.add):
            for node in module.graph.find_nodes(op="call_function", target=op):
                first, second, *others = node.args
                for last in others:
                    with module.graph.inserting_before(node):
                        inner = module.graph.call_function(op, (first, second))
                    values = torch.fx.map_arg((first, second), lambda n: n.meta["val"])
                    inner.meta = {**node.meta, "val": op(*values)}
                    first, second = inner, last
                node.args = (first, second)


def static_values(gm: torch.fx.GraphModule) -> dict[Node, Any]:
    """The fake value of every node of a graph without symbolic inputs."""
    return {node: node.meta.get("val") for node in gm.graph.nodes}


def values_at(gm: torch.fx.GraphModule, args: Sequence[Any]) -> dict[Node, Any]:
    """The fake value of every node when a graph is called with these arguments.

    Tensors may be fake ones, of static sizes.
    """
    values: dict[Node, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()) as mode:
        given = (_fake(a, mode) if isinstance(a, torch.Tensor) else a for a in args)
        # Not by torch.fx.Interpreter, which notes its node where another thread's trace looks.
        with torch.no_grad():
            for node in gm.graph.nodes:
                if node.op == "placeholder":
                    values[node] = next(given)
                elif node.op == "get_attr":
                    values[node] = attribute_of(node)
                elif node.op == "call_function":
                    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                    values[node] = node.target(*args, **kwargs)
    return values


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return fake_like(tensor)
    return mode.from_tensor(tensor, static_shapes=True)


def fake_like(tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor of another mode, in the mode that is on."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The properties of a tensor that a program depends on: shape, stride, dtype, device."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def symbols_of(gm: torch.fx.GraphModule) -> tuple[tuple[str, int, int | None], ...]:
    """A graph's dynamic sizes and numbers: the name, and the input and the dimension of each.

    The names are those in the user's function, where Dynamo knows them: "x.size()[0]".
    """
    found: dict[str, tuple[str, int, int | None]] = {}
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        for dim, size in numbers_of(node.meta.get("val")):
            if isinstance(size, torch.SymInt | torch.SymFloat) and size.node.expr.is_symbol:
                name = name_of_size(size)
                found[name] = (name, index, dim)
    return tuple(found.values())


def numbers_of(fake: Any) -> Iterator[tuple[int | None, Any]]:
    """The sizes of a tensor by dimension; what is no tensor by itself, of dimension None."""
    if isinstance(fake, torch.Tensor):
        yield from enumerate(fake.shape)
    else:
        yield None, fake


def number_at(args: Sequence[Any], index: int, dim: int | None) -> Any:
    """The size of an argument of a call in a dimension, or the argument that is the number."""
    return args[index] if dim is None else args[index].shape[dim]


def name_of_size(size: torch.SymInt | torch.SymFloat) -> str:
    """The name of a dynamic size in the user's function if Dynamo knows it, else the symbol's."""
    environment, symbol = size.node.shape_env, size.node.expr
    known = getattr(environment, "var_to_sources", {}).get(symbol)  # private: torch 2.11 to 2.13
    if not known:
        return str(symbol)
    name = known[0].name
    return re.sub(r"\bL\['(\w+)'\]", r"\1", name if isinstance(name, str) else name())


def offset_inputs(gm: torch.fx.GraphModule) -> list[int]:
    """The inputs whose storage offset matters: `as_strided` counts from the storage's start.

    Dynamo does not guard storage offsets, so a graph may be called with others than it was traced
    with.
    """
    placeholders = {n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    found, memories = set(), Memories()
    for node in through_storage(gm):
        root = memories.of(node.args[0])
        explicit = len(node.args) > 3 and node.args[3] is not None
        if root in placeholders and explicit:
            found.add(placeholders[root])
    return sorted(found)


def size_key(args: Sequence[Any]) -> tuple[Any, ...]:
    """The key of a symbolic graph's call: its numbers, and its tensors' sizes and strides."""
    return tuple(map(_key, args))


def _key(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.stride()
    if isinstance(argument, float | complex):
        return repr(argument)  # -0.0 is not 0.0, and NaN is NaN
    return argument
