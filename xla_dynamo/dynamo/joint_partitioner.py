"""A joint graph to a forward and a backward graph: torch's partitioner, with corrections."""

from typing import Any, TypeAlias

import torch
from torch.utils.checkpoint import CheckpointPolicy

from xla_dynamo.dynamo.carried_shards import carry_shards
from xla_dynamo.dynamo.saved_views import fixed_inputs, save_whole, viewed_in_parts
from xla_dynamo.graphs.nodes import call_of, is_random, run_and_save_rng_state, run_with_rng_state
from xla_dynamo.torch_private import default_partition, detect_fake_mode, must_recompute

Node: TypeAlias = torch.fx.Node
GraphModule: TypeAlias = torch.fx.GraphModule
aten = torch.ops.aten


def forward_backward(
    joint: GraphModule, joint_inputs: Any, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """Cut a joint graph so that the backward sees the numbers that the forward drew.

    What a checkpointed region draws is drawn again from a saved state; all else is saved. Torch's
    other partitioner, by minimal cuts, would take two draws of Exponential(1) for one, and draws
    anew in the backward to save memory. The arguments are those of torch's partitioners.
    """
    _save_draws(joint)
    nodes = _forward_nodes(joint)
    names = {node.name for node in nodes}
    static = kwargs.get("static_lifetime_input_indices") or ()
    save_whole(joint, [*fixed_inputs(joint, static), *viewed_in_parts(nodes)], nodes)
    _skip_aliases(joint)
    forward, backward = default_partition(joint, joint_inputs, **kwargs)
    for gm, is_forward in ((forward, True), (backward, False)):
        _drop_draws_of_the_other(gm, names, is_forward)
        _complete_replays(gm)
    carry_shards(forward, backward)
    for gm in (forward, backward):
        gm.recompile()
    return forward, backward


def _forward_nodes(joint: GraphModule) -> list[Node]:
    """The nodes of the forward: all up to the last that AOTAutograd marks, as the partitioner says.

    It does not mark those of a user's own backward.
    """
    nodes = list(joint.graph.nodes)
    last = max(i for i, n in enumerate(nodes) if n.meta.get("partitioner_tag") == "is_forward")
    return nodes[: last + 1]


def _skip_aliases(joint: GraphModule) -> None:
    """Have operators read what an alias is one of.

    Autograd saves a result by an alias: both would be saved, where one is enough, and then in
    strides of our choice.
    """
    for node in joint.graph.nodes:
        if node.target in (aten.alias.default, aten.detach.default):
            node.replace_all_uses_with(node.args[0], lambda user: user.op != "output")
            if not node.users:
                joint.graph.erase_node(node)


def _save_draws(joint: GraphModule) -> None:
    """Save what is not to be drawn again.

    The partitioner itself leaves out what the backward reads through recomputed operators alone.
    """
    for node in joint.graph.nodes:
        if is_random(node) and not must_recompute(node):
            several = isinstance(node.meta.get("val"), tuple | list)
            for saved in node.users if several else (node,):
                saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _drop_draws_of_the_other(gm: GraphModule, forward: set[str], is_forward: bool) -> None:
    """Both graphs get the draws that read no input; each keeps its own, used or not."""

    def stays(node: Node) -> bool:
        drawn_here = is_random(node) and (node.name in forward) == is_forward
        return bool(drawn_here or node.is_impure(impure_random=False))

    gm.graph.eliminate_dead_code(stays)


def _complete_replays(gm: GraphModule) -> None:
    """Give what the partitioner made for checkpointed draws the fake values that it leaves out.

    It also takes the size of a generator's state for an unknown one.
    """
    for node in gm.graph.nodes:
        if node.target not in (run_and_save_rng_state, run_with_rng_state):
            continue
        op, args, kwargs = call_of(node)
        args, kwargs = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        states = [n for n in node.users if n.args[1] == 0] if _saves(node) else [node.args[0]]
        mode = detect_fake_mode([n.meta["val"] for n in states])
        with mode:
            state = torch.empty(torch.get_rng_state().shape, dtype=torch.uint8)
            drawn = op(*args, **kwargs)
        for saved in states:
            saved.meta["val"] = state
        node.meta["val"] = (state, drawn) if _saves(node) else drawn


def _saves(node: Node) -> bool:
    return node.target is run_and_save_rng_state
