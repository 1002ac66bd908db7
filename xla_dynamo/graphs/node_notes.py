"""What reports want to know of a graph's nodes when the graph itself is gone."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from xla_dynamo.graphs.source_lines import SourceLine, innermost_user_frame

BACKWARD = "backward"
_PHASE = "xla_dynamo.phase"
_INPUT = re.compile(r"^L\['\w+'\](\[\d+\])?\.?")
_INDEXED = re.compile(r"\['?(\w+)'?\]")
# The operators whose floating-point operations `torch.utils.flop_counter` counts.
_COUNTED = ("mm", "convolution", "scaled_dot_product")


class NodeNote(NamedTuple):
    """What is known of a node.

    Attributes:
        trace: the formatted stack trace of the user's call; None where nobody made it.
        path: Dynamo's path of the module that it is in, as "L['self'].layers.0"; "" in none.
        phase: "backward", "optimizer: AdamW.step" say; "" of a forward.
        operator: the operator, if its floating-point operations are counted by a formula.
        shapes: of its arguments, None for those that are no tensors; and of its result.
    """

    trace: str | None
    path: str
    phase: str
    operator: Any
    shapes: tuple[Any, Any]

    @property
    def line(self) -> SourceLine | None:
        """The user's line behind it."""
        return innermost_user_frame(self.trace) if self.trace else None

    @property
    def module(self) -> str:
        """The module's path in the model, as "layers.0"."""
        return module_path(self.path)


def notes_of(gm: torch.fx.GraphModule) -> dict[str, NodeNote]:
    """What is known of each node of a graph, by name; it costs a microsecond for each."""
    return {node.name: _note(node) for node in gm.graph.nodes if node.op == "call_function"}


def _note(node: torch.fx.Node) -> NodeNote:
    meta = node.meta
    modules = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    path = next(reversed(modules.values()))[0] if modules else ""
    phase = (meta.get("custom") or {}).get(_PHASE, "")
    if not phase and (
        meta.get("autograd_backward") or meta.get("partitioner_tag") == "is_backward"
    ):
        phase = BACKWARD
    operator: Any = None
    shapes: tuple[Any, Any] = (None, None)
    name = getattr(node.target, "__name__", "")
    if any(part in name for part in _COUNTED):
        operator, shapes = node.target, (tuple(map(_shape, node.args)), _shape(node))
    return NodeNote(meta.get("stack_trace"), path, phase, operator, shapes)


def _shape(argument: Any) -> Any:
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
    if isinstance(value, torch.Tensor):
        return value.shape
    return [*map(_shape, value)] if isinstance(value, list | tuple) else value


def module_path(path: str) -> str:
    """Dynamo's path of a module as the model names it: "L['self']._modules['a'].b" is "a.b"."""
    path = _INDEXED.sub(r".\1", _INPUT.sub("", path))
    return path.replace("_modules.", "").strip(".")


def path_of(node: torch.fx.Node) -> str:
    """The path of the module that a node is in, as the model names it; "" in none."""
    modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return module_path(next(reversed(modules.values()))[0]) if modules else ""


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Give the nodes that are traced in this block a phase, in the place of a line."""
    with placed_at({"custom": {_PHASE: name}}):
        yield


@contextlib.contextmanager
def placed_at(meta: Mapping[str, Any]) -> Iterator[None]:
    """Give the nodes that are traced in this block these entries of `meta`, and no others."""
    current = torch.fx.traceback.get_current_meta()
    before = dict(current)
    place_at(meta)
    try:
        yield
    finally:
        current.clear()
        current.update(before)


def place_at(meta: Mapping[str, Any]) -> None:
    """Give the nodes that are traced from now on these entries of `meta`, and no others."""
    current = torch.fx.traceback.get_current_meta()
    current.clear()
    current.update(meta)


def backward_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the nodes of a node's gradient have of its `meta`."""
    kept = {k: meta[k] for k in ("stack_trace", "nn_module_stack") if k in meta}
    return {**kept, "custom": {**(meta.get("custom") or {}), _PHASE: BACKWARD}}
