"""Shards that a backward graph reads of its forward's manual regions: they cross as whole tensors.

Each device has its own shard, and what a graph returns is one tensor. So the forward leaves the
region with a tensor that has the shards of all devices, one behind the other along the first
dimension, and the backward enters with it.
"""

from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.manual_regions import ends_of, shards_in
from xla_dynamo.torch_private import detect_fake_mode

Node: TypeAlias = torch.fx.Node
GraphModule: TypeAlias = torch.fx.GraphModule
aten = torch.ops.aten


def carry_shards(forward: GraphModule, backward: GraphModule) -> None:
    """Let saved shards leave the regions of a forward graph, and enter those of its backward."""
    end = next(iter(ends_of(forward)), None)
    if end is None:
        return
    shards = shards_in(forward)
    output = forward.graph.output_node()
    saved = {n.name: n for n in output.all_input_nodes if n in shards}
    spec = [*end.args[1:4]]
    for placeholder in backward.graph.find_nodes(op="placeholder"):
        if (shard := saved.get(placeholder.name)) is not None:
            whole = _leave(shard, spec, output)
            _enter(placeholder, spec, whole.meta["val"])


def _sharded(mesh: list[Any], rank: int) -> list[Any]:
    """The arguments of an end: the first dimension is sharded by all axes."""
    *_, axis_names = mesh
    return [*mesh, [",".join(axis_names), *[""] * (rank - 1)]]


def _leave(shard: Node, mesh: list[Any], output: Node) -> Node:
    """The tensor of all devices' shards, in the place of the shard among a forward's results."""
    graph = shard.graph
    with graph.inserting_before(output):
        flat = _at_least_1d(shard)
        whole = graph.call_function(
            torch.ops.xla.shard_to_full.default,
            (flat, *_sharded(mesh, flat.meta["val"].dim())),
        )
    _evaluate(whole)
    output.replace_input_with(shard, whole)
    return whole


def _enter(placeholder: Node, mesh: list[Any], whole: torch.Tensor) -> None:
    """Make a backward's input the tensor of all devices' shards, and its readers read the shard."""
    graph, shard = placeholder.graph, placeholder.meta["val"]
    readers = list(placeholder.users)
    with graph.inserting_after(placeholder):
        entered = graph.call_function(
            torch.ops.xla.full_to_shard.default, (placeholder, *_sharded(mesh, whole.dim()))
        )
    placeholder.meta = {**placeholder.meta, "val": whole}
    placeholder.meta.pop("tensor_meta", None)
    _evaluate(entered)
    if shard.dim() == 0:
        with graph.inserting_after(entered):
            entered = graph.call_function(aten.view.default, (entered, []))
        _evaluate(entered)
    for reader in readers:
        reader.replace_input_with(placeholder, entered)


def _at_least_1d(shard: Node) -> Node:
    if shard.meta["val"].dim():
        return shard
    flat = shard.graph.call_function(aten.view.default, (shard, [1]))
    _evaluate(flat)
    return flat


def _evaluate(node: Node) -> None:
    args: Any = torch.fx.map_arg(node.args, lambda n: n.meta["val"])
    with detect_fake_mode(args), torch.no_grad():
        node.meta["val"] = node.target(*args)  # type: ignore[operator]
