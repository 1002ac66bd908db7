"""The mesh that a graph is compiled for: that of its marks, regions and inputs' shardings."""

from collections.abc import Iterable, Mapping

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.builders.shardings import axes_of_entries
from xla_dynamo.runtime.mesh import Mesh, Sharding

OPERATOR = "xla.mark_sharding"
# Operators that name a mesh and how a tensor is divided over it.
_WITH_SPECS = (OPERATOR, "xla.full_to_shard", "xla.shard_to_full")


def mesh_of(gm: torch.fx.GraphModule, shardings: Mapping[int, Sharding]) -> Mesh | None:
    """The one mesh of the marks and regions in a graph and of its inputs; None without any.

    Raises:
        ShardingError: they are of different meshes, or a mark has no sharding of its tensor.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    found: list[tuple[Mesh, torch.fx.Node]] = [
        (sharding.mesh, inputs[index]) for index, sharding in shardings.items()
    ]
    for node in specs_in(gm):
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


def specs_in(gm: torch.fx.GraphModule) -> Iterable[torch.fx.Node]:
    """The marks and the ends of manual regions in a graph and in the graphs inside it."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if name_of(node) in _WITH_SPECS:
                    yield node


def name_of(node: torch.fx.Node) -> str:
    """An operator's name: in Dynamo's graphs it is the packet's, in ATen's that of an overload."""
    return str(node.target).removesuffix(".default") if node.op == "call_function" else ""


def is_mark(node: torch.fx.Node) -> bool:
    """Whether a node is a mark."""
    return name_of(node) == OPERATOR


def mesh_of_node(node: torch.fx.Node) -> Mesh:
    """The mesh of a mark or of a manual region's end.

    Raises:
        ShardingError: it is no mesh.
    """
    device_ids, mesh_shape, axis_names = node.args[1:4]
    return Mesh(device_ids, tuple(mesh_shape), tuple(axis_names))  # type: ignore[arg-type]


def _checked(node: torch.fx.Node) -> Sharding:
    x, spec = node.args[0], node.args[4]
    try:
        sharding = Sharding(mesh_of_node(node), axes_of_entries(spec))  # type: ignore[arg-type]
        sharding.check(x.meta["val"].dim())  # type: ignore
    except ShardingError as error:
        raise ShardingError(f"{error}, in a mark of {_what(x)}{describe(node)}") from None
    return sharding


def _what(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else "?"
    kind = "an input" if node.op == "placeholder" else "a result"
    return f"{kind} of shape {shape}"
