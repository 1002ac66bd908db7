"""torch's functional collectives in manual regions to ours: group names become device indices.

A group is named by axes of the mesh, as "data" or "data,model", or is a process group of torch's,
as far as its ranks lie along axes. Collectives outside of manual regions stay as they are: torch
runs them, on its own processes.
"""

import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.graphs.manual_regions import graphs_of, region_mesh, shards_in
from xla_dynamo.graphs.marked import name_of
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.runtime.replica_groups import groups_along
from xla_dynamo.torch_private import resolve_process_group

Node: TypeAlias = torch.fx.Node
Group: TypeAlias = tuple[list[int], int]

_COALESCED = "_coalesced"


def resolve_groups(gm: torch.fx.GraphModule) -> None:
    """Replace torch's functional collectives in the manual regions of a graph by ours.

    Raises:
        ShardingError: the mesh has no such group, or the sizes of what is exchanged differ.
    """
    mesh = region_mesh(gm)
    if mesh is None:
        return
    for module in graphs_of(gm):
        shards = shards_in(module)
        for node in list(module.graph.nodes):
            namespace, _, name = name_of(node).partition(".")
            if namespace in ("_c10d_functional", "_c10d_functional_autograd") and node in shards:
                _replace(node, name, mesh)


def _replace(node: Node, name: str, mesh: Mesh) -> None:
    if name == "wait_tensor":
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    elif name.endswith(_COALESCED):
        xs: Any = node.args[0]
        made = [_call(node, name.removesuffix(_COALESCED), (x, *node.args[1:]), mesh) for x in xs]
        for item in list(node.users):
            assert item.target is operator.getitem
            item.replace_all_uses_with(made[item.args[1]])  # type: ignore[index]
            node.graph.erase_node(item)
    else:
        node.replace_all_uses_with(_call(node, name, node.args, mesh))
    node.graph.erase_node(node)


def _call(node: Node, name: str, args: Sequence[Any], mesh: Mesh) -> Node:
    """A node of ours before one of torch's, for these arguments of torch's operator."""
    x, *others, group_name = args
    groups, size = _group(group_name, mesh, node)
    ours, given = _ours(node, name, others, size)
    with node.graph.inserting_before(node):
        made = node.graph.call_function(
            getattr(torch.ops.xla, ours).default, (x, *given, groups, size)
        )
    made.meta = dict(node.meta)
    if isinstance(value := node.meta.get("val"), list | tuple):
        made.meta["val"] = value[list(node.args[0]).index(x)]  # type: ignore[arg-type]
    return made


def _ours(node: Node, name: str, given: list[Any], size: int) -> tuple[str, tuple[Any, ...]]:
    """The name of our operator, and its arguments between the tensor and the groups."""
    if name == "all_reduce":
        return name, (given[0].lower(),)
    if name == "broadcast":
        return "collective_broadcast", (given[0],)
    if name == "all_to_all_single":
        _check_splits(node, given, size)
        return "all_to_all", (0, 0)
    if name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        if given[-1] != size:
            raise ShardingError(
                f"{node.target} is for groups of {given[-1]} processes, and its group has {size} "
                f"devices{describe(node)}"
            )
        if name == "all_gather_into_tensor":
            return "all_gather", (0,)
        return "reduce_scatter", (given[0].lower(), 0)
    raise ShardingError(
        f"{node.target} is not among the collectives of manual regions: those of xla_dynamo.spmd "
        f"are{describe(node)}"
    )


def _check_splits(node: Node, splits: Sequence[Any], size: int) -> None:
    """All devices run one program, so what one sends the next is of one size."""
    for sizes in splits:
        if len(sizes) and (len(set(sizes)) > 1 or len(sizes) != size):
            raise ShardingError(
                f"{node.target} exchanges parts of the sizes {list(sizes)}: all devices of a "
                f"manual region run one program, in which each of {size} gets as much. Pad the "
                f"parts, or permute by spmd.collective_permute{describe(node)}"
            )


def _group(name: Any, mesh: Mesh, node: Node) -> Group:
    axes = str(name).split(",")
    if set(axes) <= set(mesh.axis_names) and len(set(axes)) == len(axes):
        return groups_along(mesh.mesh_shape, mesh.axis_names, axes)
    ranks = _ranks(name)
    if ranks is None:
        raise ShardingError(
            f"the group {name!r} of {node.target} is neither of axes of {mesh} (as "
            f"{','.join(mesh.axis_names)!r}) nor a process group of torch's{describe(node)}"
        )
    for length in range(1, len(mesh.axis_names) + 1):
        for chosen in itertools.permutations(mesh.axis_names, length):
            groups, size = groups_along(mesh.mesh_shape, mesh.axis_names, chosen)
            rows = [groups[start : start + size] for start in range(0, len(groups), size)]
            if ranks in rows:
                return groups, size
    raise ShardingError(
        f"the ranks {ranks} of the group {name!r} are not devices along axes of {mesh}: in a "
        f"manual region the rank is the device's index in the mesh{describe(node)}"
    )


def _ranks(name: Any) -> list[int] | None:
    """The ranks of a process group, in their sequence; None if there is no such group."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        group = resolve_process_group(name) if isinstance(name, str) else name
        return distributed.get_process_group_ranks(group)
    except (KeyError, RuntimeError, ValueError):
        return None
