"""Mark the inputs of a graph as is found to be best, before it is compiled for them."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_graph import SourceGraph
from xla_dynamo.programs.auto_sharding import choose_shardings
from xla_dynamo.runtime import marks, metrics
from xla_dynamo.runtime.clients import placement_of
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.spmd.auto_sharding import meshes_to_choose_from, report
from xla_dynamo.torch_private import unset_fake_temporarily

# A forward alone does not tell what its backward sends.
_KINDS = ("inference", "training step")


def auto_marks_for(source: SourceGraph, request: Request) -> "AutoMarks | None":
    """What marks the inputs of a graph, if that is of a kind, and in a form, that it can be for."""
    facts = source.facts
    is_one = request.kind in _KINDS and facts.is_static and not facts.has_marks
    return AutoMarks(source, request) if is_one else None


class AutoMarks:
    """The marks of a graph's inputs, by which of them had one before."""

    def __init__(self, source: SourceGraph, request: Request) -> None:
        """Begin with nothing chosen."""
        self._source, self._request = source, request
        self._chosen: dict[Any, Mapping[int, Sharding]] = {}
        self._lock = threading.Lock()

    def mark(self, args: Sequence[Any]) -> None:
        """Mark inputs that have no mark, if that is better than whole ones."""
        given = {
            n: sharding
            for n, a in enumerate(args)
            if isinstance(a, torch.Tensor) and (sharding := marks.sharding_of(a)) is not None
        }
        with self._lock:
            key = tuple(given.items())
            if key not in self._chosen:
                self._chosen[key] = self._choose(args, given)
            chosen = self._chosen[key]
        for number, sharding in chosen.items():
            marks.mark(args[number], sharding)

    @unset_fake_temporarily()
    def _choose(self, args: Sequence[Any], given: Mapping[int, Sharding]) -> Mapping[int, Sharding]:
        meshes = meshes_to_choose_from()
        if meshes[0].size() == 1:
            return {}
        sharded = {n: sharding for n, sharding in given.items() if any(sharding.axes)}
        whole = [n for n in given if n not in sharded]
        platform = placement_of(self._source.facts.device).platform
        with metrics.timed("AutoShardingTime"):
            gm = self._source.gm
            choice = choose_shardings(gm, self._request, meshes, platform, sharded, whole)
        if choice is None or not choice.shardings:
            return {}
        report(choice.describe([a.shape if isinstance(a, torch.Tensor) else () for a in args]))
        return choice.shardings
