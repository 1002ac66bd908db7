"""Manual regions of a graph: the nodes that compute with each device's shard of a tensor."""

from collections.abc import Iterator
from typing import TypeAlias

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.graphs.marked import is_mark, mesh_of_node, name_of
from xla_dynamo.graphs.nodes import bodies, is_number, operator_of, with_effects, writes_input
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.runtime.processes.job import joined

Node: TypeAlias = torch.fx.Node
GraphModule: TypeAlias = torch.fx.GraphModule

ENTRY, EXIT = "xla.full_to_shard", "xla.shard_to_full"
PERMUTE = "xla.collective_permute"
COLLECTIVES = {PERMUTE} | {
    f"xla.{name}"
    for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "reduce_scatter")
}
_LEAVE = (
    "leave the region first, by an entry of out_specs in spmd.shard_map or by "
    "spmd.disable_manual_sharding"
)


def ends_of(gm: GraphModule) -> Iterator[Node]:
    """The entries and exits of a graph's regions, without those of the graphs inside it."""
    return (node for node in gm.graph.nodes if name_of(node) in (ENTRY, EXIT))


def graphs_of(gm: GraphModule) -> list[GraphModule]:
    """A graph and those inside it."""
    return [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]


def region_mesh(gm: GraphModule) -> Mesh | None:
    """The mesh of a graph's regions; None without any."""
    ends = (node for module in graphs_of(gm) for node in ends_of(module))
    node = next(ends, None)
    return None if node is None else mesh_of_node(node)


def shards_in(gm: GraphModule) -> dict[Node, None]:
    """The nodes of a graph whose value is a shard, in their order."""
    found: dict[Node, None] = {}
    for node in gm.graph.nodes:
        name = name_of(node)
        if name == EXIT or node.op != "call_function" or is_number(node):
            continue  # the sizes of a shard are the same on all devices
        if name == ENTRY or name in COLLECTIVES or any(n in found for n in node.all_input_nodes):
            found[node] = None
    return found


def replicas_of(gm: GraphModule) -> tuple[int, ...]:
    """The ranks of the processes whose values a graph's collectives exchange.

    Collectives are of processes in a graph without manual regions.

    Raises:
        ShardingError: two collectives are of other processes.
    """
    if region_mesh(gm) is not None:
        return ()
    found: dict[tuple[int, ...], Node] = {}
    for module in graphs_of(gm):
        for node in module.graph.nodes:
            if name_of(node) in COLLECTIVES:
                found.setdefault(_ranks_of(node), node)
    if len(found) > 1:
        (first, _), (second, node) = list(found.items())[:2]
        raise ShardingError(
            f"a compiled region exchanges values among the processes {list(first)}, and among "
            f"{list(second)}: name all processes of the region in groups, each in one"
            f"{describe(node)}"
        )
    ranks = next(iter(found), ())
    return ranks if len(ranks) > 1 else ()


def _ranks_of(node: Node) -> tuple[int, ...]:
    """The ranks of the processes that a collective is of: a permutation is of all."""
    here = joined()
    if name_of(node) == PERMUTE:
        return tuple(range(here.seat.size if here is not None else 1))
    ranks: list[int] = node.args[-2]  # type: ignore[assignment]
    return tuple(sorted(ranks))


def check_manual_regions(gm: GraphModule) -> None:
    """Check what the operators of manual regions are given, and what reads shards.

    Raises:
        ShardingError: a collective has no groups of the mesh's devices, or of processes where it is
            outside of a region; a region has a mark, another region, or an effect; or a shard
            leaves it.
    """
    mesh = region_mesh(gm)
    for module in graphs_of(gm):
        for node in module.graph.nodes:
            if name_of(node) in COLLECTIVES:
                _check_collective(node, mesh)
    if mesh is None:
        return
    for module in graphs_of(gm):
        shards = shards_in(module)
        has_ends = any(True for _ in ends_of(module))
        for node in module.graph.nodes:
            if any(n in shards for n in node.all_input_nodes):
                _check_reader(node)
                if node.op == "output" and has_ends:
                    _refuse_to_leave(node, shards, is_body=module is not gm)


def _check_collective(node: Node, mesh: Mesh | None) -> None:
    if mesh is None:
        _check_processes(node)
        return
    indices = range(mesh.size())
    if name_of(node) == PERMUTE:
        pairs: list[int] = node.args[1]  # type: ignore[assignment]
        for ends in (pairs[::2], pairs[1::2]):
            if len(set(ends)) != len(ends) or not set(ends) <= set(indices):
                raise ShardingError(
                    "collective_permute takes pairs of indices along an axis, or of devices of "
                    f"{mesh}, in which each sends once and gets once at most{describe(node)}"
                )
        return
    groups: list[int] = node.args[-2]  # type: ignore[assignment]
    if sorted(groups) != list(indices):
        raise ShardingError(
            f"{name_of(node)} goes along axes of its mesh, {mesh.axis_names}, each once, or has "
            f"groups of one size, with each of the devices {mesh.ids} in one{describe(node)}"
        )


def _check_processes(node: Node) -> None:
    """Check a collective outside of manual regions: its groups are ranks of processes."""
    if joined() is None:
        raise ShardingError(
            f"{name_of(node)} is outside of a manual region, where no device has a shard of its "
            "own, and this process has not joined others, which would have values of their own: "
            f"use it in spmd.shard_map, or start the processes by xla_dynamo.launch{describe(node)}"
        )
    if name_of(node) == PERMUTE:
        return
    groups: list[int] = node.args[-2]  # type: ignore[assignment]
    size: int = node.args[-1]  # type: ignore[assignment]
    if len(set(groups)) != len(groups) or not groups or len(groups) % size:
        raise ShardingError(
            f"{name_of(node)} has groups of {size} processes, {groups}: they are of one size, with "
            f"each process in one{describe(node)}"
        )


def _check_reader(node: Node) -> None:
    """Check a node that reads a shard."""
    inside = [n for body in bodies(node) for m in graphs_of(body) for n in m.graph.nodes]
    if is_mark(node) or any(map(is_mark, inside)):
        raise ShardingError(
            "mark_sharding is in a manual region, where XLA partitions nothing: each device has "
            f"its shard there. Mark values outside of it{describe(node)}"
        )
    if name_of(node) == ENTRY or any(name_of(n) in (ENTRY, EXIT) for n in inside):
        raise ShardingError(
            "a manual region has another inside it, which is not supported: name all axes in one "
            f"region{describe(node)}"
        )
    if node.target is with_effects:
        raise ShardingError(
            f"{node.args[1]} in a manual region acts outside of the program, where no device has a "
            "shard of its own: take it out of the region, or call a function that checks nothing, "
            f"as torch.linalg.inv_ex in the place of inv{describe(node)}"
        )
    if writes_input(node):
        raise ShardingError(
            "an input is changed in a manual region, to a shard, of which each device has its own: "
            f"{_LEAVE}{describe(node.args[1])}"  # type: ignore[arg-type]
        )


def _refuse_to_leave(output: Node, shards: dict[Node, None], is_body: bool) -> None:
    shard = next(n for n in output.all_input_nodes if n in shards)
    if is_body:
        raise ShardingError(
            "a manual region inside the body of a branch or loop has no gradient yet: put the "
            f"whole loop into the region{describe(shard)}"
        )
    raise ShardingError(
        f"a result of shape {tuple(shard.meta['val'].shape)} is a shard of a manual region, of "
        f"which each device has its own: {_LEAVE}. A tensor that the region reads must be an "
        "argument of it to have a gradient, and a region must be one graph, without a break"
        f"{describe(shard)}"
    )


def check_eager(gm: GraphModule, eager: dict[Node, str]) -> None:
    """Raise ShardingError if a node that torch is to run, for a reason, computes with shards."""
    if region_mesh(gm) is None:
        return
    shards = shards_in(gm)
    for node, reason in eager.items():
        if node in shards or any(n in shards for n in node.all_input_nodes):
            raise ShardingError(
                f"{operator_of(node)} in a manual region cannot be compiled: {reason}. Torch runs "
                f"on whole tensors, so take it out of the region{describe(node)}"
            )
