"""Write ATen graphs with dynamic sizes as JSON, and read them: sizes as polynomials of the symbols.

Reading a graph runs no code from it: functions are found by name among operators and those of
Python's module `operator`.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from xla_dynamo.errors import StorageError
from xla_dynamo.graphs.dynamic_sizes import DynamicSizes, NotBounded
from xla_dynamo.lowerings.bounded.extents import Extent
from xla_dynamo.programs.storage import decoded, encoded
from xla_dynamo.torch_private import FakeTensorMode, OpOverload, new_symbol

# What graphs compute sizes with.
_OF_NUMBERS = {f.__name__: f for f in (operator.add, operator.sub, operator.mul, operator.getitem)}


def written_graph(gm: torch.fx.GraphModule, sizes: DynamicSizes) -> Any:
    """A graph as JSON has it.

    Raises:
        StorageError: it has what no file can hold, such as a tensor or a graph of its own.
    """
    numbers: dict[torch.fx.Node, int] = {}
    nodes = []
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise StorageError(f"a graph with a node of kind {node.op} cannot be written")
        nodes.append(
            {
                "name": node.name,
                "op": node.op,
                "target": _target(node) if node.op == "call_function" else None,
                "arguments": _references([list(node.args), node.kwargs], numbers),
                "value": _written_value(node, node.meta.get("val"), sizes),
                "line": node.meta.get("stack_trace"),
            }
        )
        numbers[node] = len(numbers)
    return {"ranges": [list(ends) for ends in sizes.calls.ranges], "nodes": nodes}


def read_graph(written: Any) -> torch.fx.GraphModule:
    """The graph that `written_graph` wrote, with symbols of its own for its dynamic dimensions."""
    graph = torch.fx.Graph()
    nodes: list[torch.fx.Node] = []
    mode = FakeTensorMode(shape_env=ShapeEnv())
    symbols = [new_symbol(mode, low, low, high) for low, high in written["ranges"]]
    with mode:
        for given in written["nodes"]:
            args, kwargs = _nodes(given["arguments"], nodes)
            if given["op"] == "call_function":
                node = graph.call_function(_function(given["target"]), tuple(args), kwargs)
                node.name = given["name"]
            elif given["op"] == "placeholder":
                node = graph.placeholder(given["name"])
            else:
                node = graph.output(args[0])
            node.meta["val"] = _read_value(given["value"], symbols)
            if given["line"] is not None:
                node.meta["stack_trace"] = given["line"]
            nodes.append(node)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _target(node: torch.fx.Node) -> str:
    if isinstance(node.target, OpOverload):
        return str(node.target)
    name = getattr(node.target, "__name__", "")
    if _OF_NUMBERS.get(name) is node.target:
        return name
    raise StorageError(f"a graph that calls {node.target} cannot be written")


def _function(name: str) -> Any:
    return _OF_NUMBERS[name] if name in _OF_NUMBERS else decoded({"op": name})


def _references(value: Any, numbers: dict[torch.fx.Node, int]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": numbers[value]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_references(v, numbers) for v in value]}
    if isinstance(value, dict):
        return {"dict": {str(k): _references(v, numbers) for k, v in value.items()}}
    return {"value": encoded(value)}


def _nodes(value: Any, nodes: Sequence[torch.fx.Node]) -> Any:
    ((kind, content),) = value.items()
    if kind == "node":
        return nodes[content]
    if kind == "dict":
        return {k: _nodes(v, nodes) for k, v in content.items()}
    if kind == "value":
        return decoded(content)
    items = [_nodes(v, nodes) for v in content]
    return tuple(items) if kind == "tuple" else items


def _written_value(node: torch.fx.Node, fake: Any, sizes: DynamicSizes) -> Any:
    try:
        if isinstance(fake, torch.Tensor):
            numbers = (list(fake.shape), list(fake.stride()), [fake.storage_offset()])
            extents = [[encoded(sizes.extent(node, n)) for n in each] for each in numbers]
            return {"tensor": [*extents, encoded(fake.dtype), encoded(fake.device)]}
        if isinstance(fake, torch.SymInt):
            return {"size": encoded(sizes.extent(node, fake))}
    except NotBounded as error:
        raise StorageError(f"a graph cannot be written: {error}") from error
    if isinstance(fake, tuple | list):
        return {"list": [_written_value(node, each, sizes) for each in fake]}
    return {"value": encoded(fake)}


def _read_value(written: Any, symbols: Sequence[torch.SymInt]) -> Any:
    ((kind, content),) = written.items()
    if kind == "list":
        return [_read_value(each, symbols) for each in content]
    if kind == "value":
        return decoded(content)
    if kind == "size":
        return _size(content, symbols)
    shape, stride, (offset,) = ([_size(n, symbols) for n in each] for each in content[:3])
    dtype, device = map(decoded, content[3:])
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return made if type(offset) is int and offset == 0 else made.as_strided(shape, stride, offset)


def _size(written: Any, symbols: Sequence[torch.SymInt]) -> Any:
    extent = decoded(written)
    assert isinstance(extent, Extent)
    return extent.at(symbols)  # type: ignore[arg-type]
