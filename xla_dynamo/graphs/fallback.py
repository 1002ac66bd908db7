"""Fallback: split a graph into compiled parts and the operators that torch runs between them.

The table and the graph alone decide, and nothing is run, so sizes may be symbolic. Time alternates:
at even times a part runs that XLA compiled, at odd times torch's operators run, one after another.
Every node gets the earliest time that its operands allow, so there are as few parts as the longest
chain of alternations requires, and no part waits for a later one. Nodes that depend on the inputs
alone are then moved to the part that first reads them, so that their results cross no cut.
"""

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from xla_dynamo.graphs.nodes import (
    assertion,
    bodies,
    generator_of,
    is_index,
    is_indexed,
    is_number,
    is_plain_effect,
    is_random,
    replaces_input,
    tensors_of,
    through_storage,
    while_loop_stack_output,
    with_effects,
    writes_input,
)
from xla_dynamo.graphs.output_views import views_under
from xla_dynamo.lowerings import find_refusal, find_rule
from xla_dynamo.lowerings.builders.dtypes import SUPPORTED_DTYPES
from xla_dynamo.options import Options
from xla_dynamo.torch_private import OpOverload, schema

Node: TypeAlias = torch.fx.Node
aten = torch.ops.aten
# The time of the inputs: a compiled part may come next, and an operator at this very time.
START = -1
# The reason of random operators under options={"rng": "torch"}.
DRAWN_BY_TORCH = "torch draws its random numbers"
# The reason of loops that keep their steps: see `stacked_loops`.
TWO_PROGRAMS = "the number of its steps depends on values: one program counts, another runs it"


def eager_reason(node: Node, options: Options) -> str | None:
    """Why a node is not to be part of an XLA program, or None if it is."""
    if options.rng == "torch" and _draws(node):
        return DRAWN_BY_TORCH
    # Not if the loop draws: both programs would have to draw the same numbers.
    keeps_steps = node.target is while_loop_stack_output and not _draws(node)
    if keeps_steps and _obstacle_inside(node) is None:
        return TWO_PROGRAMS
    return _obstacle(node) if options.fallback == "eager" else None


def _draws(node: Node) -> bool:
    """Whether a node, or the body of a branch or loop, draws random numbers."""
    return is_random(node) or any(_draws(n) for body in bodies(node) for n in body.graph.nodes)


def _obstacle(node: Node) -> str | None:
    """Why a node cannot be part of an XLA program, or None if it can."""
    op: Any = node.target
    if node.op != "call_function" or op is operator.getitem or writes_input(node):
        return None
    if op is with_effects:
        return None if is_plain_effect(node) else "it has effects and results"
    if op is assertion:
        return None
    if op is aten._local_scalar_dense.default or _gives_new_sizes(node):
        return "the size or number it gives depends on values, and XLA's sizes are fixed"
    if is_number(node):
        return None
    if replaces_input(node) or (op is aten.alias.default and any(map(replaces_input, node.users))):
        return "it gives an input other memory"
    if isinstance(op, OpOverload) and schema(op).is_mutable:
        return None  # nothing here keeps the order of writes and reads: lowering refuses it
    for value in (node, *node.all_input_nodes):
        for tensor in tensors_of(value):
            if tensor.layout is not torch.strided:
                return f"XLA has no tensors of layout {tensor.layout}"
            if tensor.dtype not in SUPPORTED_DTYPES:
                return f"StableHLO has no type for {tensor.dtype}"
    if generator_of(node) is not None:
        return "it draws from a generator of its own"
    if (refusal := find_refusal(op)) is not None:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        return refusal(*args, **kwargs)
    return _obstacle_inside(node) if find_rule(op) else "no lowering"


def _obstacle_inside(node: Node) -> str | None:
    """Why the body of a branch or loop cannot be part of an XLA program, or None."""
    for inner in (n for body in bodies(node) for n in body.graph.nodes):
        if writes_input(inner) or inner.target is with_effects or inner.kwargs.get("check_errors"):
            return f"{inner.target} inside it acts on more than its results"
        if is_index(inner) or is_indexed(inner):
            continue
        if (reason := _obstacle(inner)) is not None:
            return f"{inner.target} inside it: {reason}"
    return None


def _gives_new_sizes(node: Node) -> bool:
    """Whether a result has a size that no operand has: the number of a mask's true elements.

    FX notes where such sizes first come up (`unbacked_bindings`); the same mask used again gives
    the same size, and no note.
    """
    if node.meta.get("unbacked_bindings"):
        return True
    value = node.meta.get("val")
    if not any(isinstance(n, torch.SymInt) for tensor in tensors_of(node) for n in tensor.shape):
        return False
    given = set().union(*(free_unbacked_symbols(n.meta.get("val")) for n in node.all_input_nodes))
    return bool(free_unbacked_symbols(value) - given)


class Schedule(NamedTuple):
    """When each node runs.

    Attributes:
        eager: the nodes that XLA cannot run, with the reason.
        times: START for inputs and constants, even for nodes of a compiled part, odd for others.
    """

    eager: dict[Node, str]
    times: dict[Node, int]

    def at(self, time: int) -> list[Node]:
        """The nodes of a time, in the graph's order."""
        return [node for node, t in self.times.items() if t == time and not _is_source(node)]

    def number_of_parts(self) -> int:
        """How many parts are compiled."""
        return len({t for node, t in self.times.items() if t % 2 == 0 and not _is_source(node)})


def split(gm: torch.fx.GraphModule, options: Options) -> Schedule | None:
    """Split a graph for eager fallback; None if all of it can be compiled."""
    _keep_sources(gm)
    reasons = {node: eager_reason(node, options) for node in gm.graph.nodes}
    eager = {node: why for node, why in reasons.items() if why is not None}
    if not eager:
        return None
    moored = _moored(gm)
    written = [node for node in gm.graph.nodes if writes_input(node)]
    replaced = [node for node in gm.graph.nodes if replaces_input(node)]
    closing = {*written, *replaced, gm.graph.output_node()}
    nodes = [node for node in gm.graph.nodes if node not in closing]
    times: dict[Node, int] = {}
    drawn = START
    for node in nodes:
        ready = _latest(times[n] for n in node.all_input_nodes)
        draws = node in eager and is_random(node)
        if draws:
            ready = max(ready, drawn)  # in the graph's order, as eager would
        on_host = node in moored or _on_host(node, eager, times)
        times[node] = ready if _is_source(node) or ready % 2 == on_host else ready + 1
        drawn = times[node] if draws else drawn
    last = _latest(times.values())
    for node in reversed(nodes):
        if times[node] == 0 and node.target is not operator.getitem:
            _wait_for_users(node, times, last - last % 2)
    # Inputs change only after every reader has run.
    times.update(dict.fromkeys(written, last))
    times.update(dict.fromkeys(replaced, last | 1))
    return Schedule(eager, times)


def _keep_sources(gm: torch.fx.GraphModule) -> None:
    """Keep the memory of inputs that exchange it: `t = a.data; a.data = b.data; b.data = t`.

    By the time that the second gets the first one's, the first has other memory already.
    """
    replaced = [node for node in gm.graph.nodes if replaces_input(node)]
    targets = {node.args[0] for node in replaced}
    for node in replaced:
        source: Any = node.args[1]
        if source in targets:
            with gm.graph.inserting_before(replaced[0]):
                kept = gm.graph.call_function(aten.alias.default, (source,))
            kept.meta = dict(source.meta)
            node.update_arg(1, kept)


def _moored(gm: torch.fx.GraphModule) -> set[Node]:
    """`as_strided` of views, and those views: they must not be cut off the memory they are in."""
    found = set()
    for node in through_storage(gm):
        views = list(views_under(node.args[0]))
        found |= {node, *views} if views else set()
    return found


def _latest(times: Iterable[int]) -> int:
    return max(times, default=START)


def _is_source(node: Node) -> bool:
    return node.op in ("placeholder", "get_attr")


def _on_host(node: Node, eager: dict[Node, str], times: dict[Node, int]) -> bool:
    """Whether torch runs a node: it has no rule, or is a number or a check of torch's results."""
    if node in eager or _feeds_torch(node, eager):
        return True
    if node.target is operator.getitem:
        return bool(times[node.all_input_nodes[0]] % 2)
    computes = next(tensors_of(node), None) is not None or node.target is with_effects
    return not computes and all(times[n] % 2 for n in node.all_input_nodes)


def _feeds_torch(node: Node, eager: dict[Node, str]) -> bool:
    """Whether a node makes a tensor from nothing for torch alone: no reason for a part."""
    from_nothing = all(is_number(n) for n in node.all_input_nodes)
    return from_nothing and bool(node.users) and all(user in eager for user in node.users)


def _wait_for_users(node: Node, times: dict[Node, int], last_part: int) -> None:
    """Move a node of the first part to the part that first needs it; its pieces go with it."""
    pieces = [user for user in node.users if user.target is operator.getitem]
    users = [u for n in (node, *pieces) for u in n.users if u in times and u not in pieces]
    time = min((times[user] - times[user] % 2 for user in users), default=last_part)
    for moved in (node, *pieces):
        times[moved] = time


def inputs_of(part: list[Node]) -> list[Node]:
    """The nodes before a part that it reads, constants aside, in order of first use."""
    inside = set(part)
    read = [n for node in part for n in node.all_input_nodes]
    return [n for n in dict.fromkeys(read) if n not in inside and n.op != "get_attr"]


def outputs_of(part: list[Node]) -> list[Node]:
    """The nodes of a part that are used after it."""
    inside = set(part)
    return [node for node in part if any(user not in inside for user in node.users)]
