"""The mesh that a graph is compiled for: that of its marks and of its inputs' shardings."""

from collections.abc import Iterable, Mapping

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.runtime.mesh import Mesh, Sharding

OPERATOR = "xla.mark_sharding"


def mesh_of(gm: torch.fx.GraphModule, shardings: Mapping[int, Sharding]) -> Mesh | None:
    """The one mesh of the marks in a graph and of its inputs; None where nothing is marked.

    Raises:
        ShardingError: they are of different meshes, or a mark has no sharding of its tensor.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    found: list[tuple[Mesh, torch.fx.Node]] = [
        (sharding.mesh, inputs[index]) for index, sharding in shardings.items()
    ]
    for node in marks_in(gm):
        sharding = _checked(node)
        found.append((sharding.mesh, node))
    if not found:
        return None
    mesh, first = found[0]
    for other, node in found:
        if other != mesh:
            raise ShardingError(
                f"a compiled graph is divided over one mesh, and {_what(first)} is marked for "
                f"{mesh}, {_what(node)} for {other}: use one mesh, of as many axes as both need"
                f"{describe(node)}"
            )
    return mesh


def marks_in(gm: torch.fx.GraphModule) -> Iterable[torch.fx.Node]:
    """The marks in a graph and in the graphs inside it."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if is_mark(node):
                    yield node


def is_mark(node: torch.fx.Node) -> bool:
    """Whether a node is a mark: in Dynamo's graphs of the operator's packet, in ATen's of it."""
    return node.op == "call_function" and str(node.target).removesuffix(".default") == OPERATOR


def _checked(node: torch.fx.Node) -> Sharding:
    x, device_ids, mesh_shape, axis_names, spec = node.args[:5]
    axes = tuple(tuple(names.split(",")) if names else () for names in spec)  # type: ignore
    try:
        sharding = Sharding(Mesh(device_ids, tuple(mesh_shape), tuple(axis_names)), axes)  # type: ignore
        sharding.check(x.meta["val"].dim())  # type: ignore
    except ShardingError as error:
        raise ShardingError(f"{error}, in a mark of {_what(x)}{describe(node)}") from None
    return sharding


def _what(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else "?"
    kind = "an input" if node.op == "placeholder" else "a result"
    return f"{kind} of shape {shape}"
