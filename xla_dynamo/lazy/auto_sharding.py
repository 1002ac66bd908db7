"""Shard the inputs of a program as is found to be best, before it is compiled.

The values are sharded, and no tensor is marked: what a program makes of them has the shardings that
the partitioner chose, as the new values of parameters have those of the old ones.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from xla_dynamo.backend import compile_torch_graph
from xla_dynamo.calls.calls import BoxedGraph
from xla_dynamo.graphs.fallback import split
from xla_dynamo.graphs.preparation import prepare
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import is_symbolic
from xla_dynamo.lazy import memory
from xla_dynamo.lazy.slices import Slice
from xla_dynamo.lazy.trace import examples, trace
from xla_dynamo.options import Options
from xla_dynamo.programs.auto_sharding import ChosenShardings, choose_shardings
from xla_dynamo.runtime import marks, metrics
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.spmd.auto_sharding import meshes_to_choose_from, report

_MOST_PROGRAMS = 1024
# By the keys of programs: the inputs, by number, that are to be sharded before, and how.
_known: "collections.OrderedDict[Any, Mapping[int, Sharding]]" = collections.OrderedDict()


def shard_inputs(part: Slice) -> bool:
    """Shard the inputs of a slice that have no sharding; returns whether any is sharded now.

    Raises:
        XlaDynamoError: the slice cannot be lowered.
    """
    chosen = _known.get(part.key)
    if chosen is None:
        chosen = _known[part.key] = _chosen(part)
        if len(_known) > _MOST_PROGRAMS:
            _known.popitem(last=False)
    if chosen:
        marks.expect()
    for number, sharding in chosen.items():
        memory.spread_over(part.inputs[number], sharding)
    return bool(chosen)


def _chosen(part: Slice) -> Mapping[int, Sharding]:
    """How inputs are best sharded, by number; nothing for a program that is as well without."""
    meshes = meshes_to_choose_from()
    if meshes[0].size() == 1:
        return {}
    placement = memory.placement()
    given = _given(part)
    found: list[ChosenShardings | None] = []

    def road(gm: Any, inputs: Sequence[Any], request: Request, saved: Any) -> BoxedGraph:
        prepare(gm)
        if not is_symbolic(gm) and split(gm, request.options) is None:
            whole = range(len(part.inputs), len(inputs))  # changing numbers and keys
            choice = choose_shardings(gm, request, meshes, placement.platform, given, whole)
            found.append(choice)
        return BoxedGraph(_never_called)

    device = placement.torch_device
    with metrics.timed("AutoShardingTime"):
        compile_torch_graph(
            trace(part, device),
            examples(part, device),
            Options.parse(None),
            kind="lazy tensors",
            placement=placement,
            road=road,
        )
    choice = found[0] if len(found) == 1 else None
    if choice is None:
        return {}
    if choice.shardings:
        report(choice.describe([v.geometry[1] for v in part.inputs]))
    return choice.shardings


def _given(part: Slice) -> dict[int, Sharding]:
    """The shardings that inputs have already."""
    if part.division is None:
        return {}
    return {n: s for n, s in enumerate(part.division.given) if any(s.axes)}


def _never_called(args: list[Any]) -> list[Any]:
    raise AssertionError("the graph is looked at, and not run")
