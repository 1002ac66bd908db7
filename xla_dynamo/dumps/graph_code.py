"""An FX graph as Python code of a module that stands by itself, and such a module as a graph."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.overrides import TorchFunctionMode

from xla_dynamo.errors import StorageError
from xla_dynamo.torch_private import FakeTensorMode, HigherOrderOperator, OpOverload

_KNOWN = {"inf": "math", "nan": "math", "torch": "", "device": "torch"}


@dataclasses.dataclass(frozen=True, slots=True)
class GraphCode:
    """The code of a graph.

    Attributes:
        imports: the lines that import what the code uses.
        classes: the classes, of which the last, `Graph`, is the graph.
        constants: the tensors that the graph holds, by the names that its class takes them by.
    """

    imports: str
    classes: str
    constants: dict[str, torch.Tensor]


def code_of(gm: torch.fx.GraphModule) -> GraphCode:
    """The code of a graph, and of the graphs that its operators call.

    Raises:
        StorageError: the graph holds an object, or calls a function, that code cannot name.
    """
    imports = {"import torch": None}
    classes: list[str] = []
    constants: dict[str, torch.Tensor] = {}
    _write(gm, "Graph", imports, classes, constants)
    return GraphCode("\n".join(sorted(imports)), "\n\n\n".join(classes), constants)


def _write(
    gm: torch.fx.GraphModule,
    name: str,
    imports: dict[str, None],
    classes: list[str],
    constants: dict[str, torch.Tensor],
) -> None:
    graph = torch.fx.Graph()
    env: dict[torch.fx.Node, torch.fx.Node] = {}
    lines = []
    for node in gm.graph.nodes:
        env[node] = copy = graph.node_copy(node, env.__getitem__)
        if node.op == "output" and isinstance(node.args[0], torch.fx.Node):
            copy.args = ((copy.args[0],),)
        if node.op != "get_attr":
            continue
        copy.target = str(node.target).replace(".", "_")
        held: Any = gm
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if isinstance(held, torch.fx.GraphModule):
            inner = f"{name}_{copy.target}"
            _write(held, inner, imports, classes, constants)
            lines.append(f"self.{copy.target} = {inner}(constants)")
        elif isinstance(held, torch.Tensor):
            key = f"{name}.{copy.target}"
            constants[key] = held.detach()
            lines.append(f"self.{copy.target} = constants[{key!r}]")
        else:
            raise StorageError(f"a graph that holds {type(held).__name__} cannot be written")
    written = graph.python_code("self", verbose=True, include_stride=True, include_device=True)
    for known, value in written.globals.items():
        if line := _import_of(known, value, written.src):
            imports[line] = None
    body = "\n".join(f"    {line}".rstrip() for line in written.src.strip().splitlines())
    made = "\n        ".join(["super().__init__()", *dict.fromkeys(lines)])
    classes.append(
        f"class {name}(torch.nn.Module):\n    def __init__(self, constants):\n        {made}\n\n"
        f"{body}"
    )


def _import_of(name: str, value: Any, source: str) -> str | None:
    """The line that gives a name its value; None if the code does not use it."""
    if name in _KNOWN:
        home = _KNOWN[name]
        return f"from {home} import {name}" if home else None
    if name not in source:
        return None
    if type(value).__name__ == "module":
        return f"import {value.__name__} as {name}"
    origin, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not origin or not own.isidentifier():
        raise StorageError(f"a graph that calls {value} cannot be written")
    return f"from {origin} import {own}" + (f" as {name}" if own != name else "")


class _Tracer(torch.fx.Tracer):
    """Records modules that are handed to operators as attributes."""

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.nn.Module):
            names = {id(child): name for name, child in self.root.named_children()}
            return self.create_node("get_attr", names[id(a)], (), {})
        return super().create_arg(a)


class _Recording(TorchFunctionMode):
    """Records every operator, also one that reads no value of the graph."""

    def __init__(self, tracer: torch.fx.Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # dispatched by torch
        if isinstance(func, (OpOverload, HigherOrderOperator)):
            return self._tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _unchecked() -> Iterator[None]:
    """In this block, operators on graphs take values of a trace, which some would refuse."""
    checking = [kind for kind in HigherOrderOperator.__subclasses__() if "__call__" in vars(kind)]
    calls = [vars(kind)["__call__"] for kind in checking]
    try:
        for kind in checking:
            kind.__call__ = HigherOrderOperator.__call__
        yield
    finally:
        for kind, call in zip(checking, calls, strict=True):
            kind.__call__ = call


def traced(module: torch.nn.Module) -> torch.fx.GraphModule:
    """The graph of a module whose `forward` calls nothing but operators."""
    tracer = _Tracer()
    for name, child in list(module.named_children()):
        setattr(module, name, traced(child))
    with _Recording(tracer), _unchecked():
        graph = tracer.trace(module)
    return torch.fx.GraphModule(module, graph)


def add_values(gm: torch.fx.GraphModule, mode: FakeTensorMode, inputs: list[Any]) -> None:
    """Give every node the fake value that it has for these inputs, in `meta["val"]`."""
    with mode:
        _Values(gm, mode).run(*inputs)


class _Values(FakeTensorProp):
    """Also gives values to the nodes of graphs that operators call."""

    def __init__(self, gm: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm, mode)
        self._inside = mode

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, HigherOrderOperator):
            args = tuple(
                _Body(a, self._inside) if isinstance(a, torch.fx.GraphModule) else a for a in args
            )
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        held = super().get_attr(target, args, kwargs)
        return self._inside.from_tensor(held) if isinstance(held, torch.Tensor) else held


class _Body(torch.nn.Module):
    """A graph that an operator calls, which gets its values when the operator runs it."""

    def __init__(self, gm: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__()
        self._gm, self._mode = gm, mode

    def forward(self, *args: Any) -> Any:
        return _Values(self._gm, self._mode).run(*args)
