"""The mesh that a graph is compiled for: that of its marks, regions and inputs' shardings."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.builders.shardings import axes_of_entries, axes_of_entry
from xla_dynamo.runtime.common_mesh import common_mesh, on_mesh
from xla_dynamo.runtime.mesh import UNCONSTRAINED, Mesh, Sharding

OPERATOR = "xla.mark_sharding"
# Operators that name a mesh and how a tensor is sharded over it.
_REGION_ENDS = ("xla.full_to_shard", "xla.shard_to_full")
_WITH_SPECS = (OPERATOR, *_REGION_ENDS)


def on_one_mesh(
    gm: torch.fx.GraphModule, shardings: Mapping[int, Sharding]
) -> tuple[Mesh | None, Mapping[int, Sharding]]:
    """The mesh of the marks and regions in a graph and of its inputs, and the inputs' shardings.

    Marks and shardings of several meshes become ones of their common mesh. Without any the mesh is
    None.

    Raises:
        ShardingError: there is no common mesh, or a mark has no sharding of its tensor.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    found: list[tuple[Mesh, torch.fx.Node]] = [
        (sharding.mesh, inputs[index]) for index, sharding in shardings.items()
    ]
    for node in specs_in(gm):
        sharding = _checked(node)
        found.append((sharding.mesh, node))
    if not found:
        return None, shardings
    mesh = _common([pair for pair in found if pair[0].size() > 1] or found)
    if any(other != mesh for other, _ in found):
        shardings = {index: on_mesh(sharding, mesh) for index, sharding in shardings.items()}
        for node in list(specs_in(gm)):
            _move(node, mesh)
    return mesh, shardings


def _common(found: Sequence[tuple[Mesh, torch.fx.Node]]) -> Mesh:
    """The common mesh of what is marked."""
    mesh, first = found[0]
    other, node = next(((m, n) for m, n in found if m != mesh), found[0])
    if mesh == other:
        return mesh
    try:
        if any(name_of(n) in _REGION_ENDS for _, n in found):
            raise ShardingError("the axes of a manual region are those of one mesh")
        return common_mesh([m for m, _ in found])
    except ShardingError as error:
        raise ShardingError(
            f"a compiled graph is partitioned over one mesh, and {_what(first)} is marked for "
            f"{mesh}, {_what(node)} for {other}; {error}{describe(node)}"
        ) from None


def _move(node: torch.fx.Node, mesh: Mesh) -> None:
    """Let a mark name the axes of the common mesh."""
    x, _, _, _, spec, *rest = node.args
    before = mesh_of_node(node)

    def moved(axes: tuple[tuple[str, ...], ...]) -> list[str]:
        return [",".join(names) for names in on_mesh(Sharding(before, axes), mesh).axes]

    grid = list(mesh.ids), list(mesh.mesh_shape), list(mesh.axis_names)
    if len(rest) == 2:  # the last of a mark's arguments: the replicated axes
        rest[1:] = moved((axes_of_entry(rest[1]),))  # type: ignore[arg-type]
    node.args = (x, *grid, moved(axes_of_entries(spec)), *rest)  # type: ignore[arg-type]


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
    # A dimension that the partitioner may shard as it likes is right in any program.
    spec = ["" if names == UNCONSTRAINED else names for names in spec]  # type: ignore
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
