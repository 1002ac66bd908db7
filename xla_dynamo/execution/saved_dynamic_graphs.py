"""Graphs of dynamic sizes in the disk cache, which a later process calls without a trace of them.

An entry has what calls need to know of the graph, and the graph itself, which is read when a call
needs a program that is not saved. The programs have entries of their own (`saved_programs`).
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from xla_dynamo.calls.calls import BoxedGraph, Call
from xla_dynamo.errors import StorageError
from xla_dynamo.events import CompilationRecord, log_event
from xla_dynamo.execution.compiled_graph import CompiledGraph
from xla_dynamo.execution.effectful_graph import EffectfulGraph
from xla_dynamo.execution.saved_programs import SavedPrograms
from xla_dynamo.graphs.dynamic_sizes import NotBounded
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_graph import GraphFacts, SourceGraph
from xla_dynamo.options import Options
from xla_dynamo.programs.graph_storage import read_graph, written_graph
from xla_dynamo.programs.storage import decoded, encoded
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.cache_folder import CacheFolder

log = logging.getLogger("xla_dynamo")
KIND = "graph"


def is_saved(graph: BoxedGraph) -> bool:
    """Whether a graph is of the kind that `save` writes."""
    return isinstance(graph.pure if isinstance(graph, EffectfulGraph) else graph, CompiledGraph)


def save(folder: CacheFolder, key: str, whole: BoxedGraph, guards: str, tokens: int) -> None:
    """Write a graph of inference as AOTAutograd made it, and the guards on its dynamic dimensions.

    Args:
        folder: the disk cache.
        key: that of Dynamo's graph.
        whole: the graph, for which `is_saved` holds.
        guards: those that its trace put on dynamic sizes.
        tokens: how many of its first inputs and results are tokens of effects.
    """
    graph = whole.pure if isinstance(whole, EffectfulGraph) else whole
    effects = whole.effects if isinstance(whole, EffectfulGraph) else ()
    assert isinstance(graph, CompiledGraph)
    source = graph.source
    facts = {f.name: getattr(source.facts, f.name) for f in dataclasses.fields(source.facts)}
    fixed = tuple(sorted(graph.request.static_inputs))
    try:
        written = encoded(
            {
                "guards": guards,
                "facts": facts,
                "static_inputs": fixed,
                "effects": effects,
                "tokens": tokens,
            }
        )
        nodes = written_graph(source.gm, source.sizes)
    except (StorageError, NotBounded) as error:
        log.info("disk cache: no place for a graph: %s", error)
        return
    folder.write(KIND, key, json.dumps([written, nodes]).encode())


def load(
    folder: CacheFolder,
    key: str,
    options: Options,
    fakes: Sequence[Any],
    keeps: Callable[[str], bool],
    passes: Hashable,
    subject: str,
) -> BoxedGraph | None:
    """The graph of this key, without tokens; None if it is not there.

    Args:
        folder: the disk cache.
        key: that of Dynamo's graph.
        options: those of the key.
        fakes: the fake values of the graph's inputs, of dynamic sizes.
        keeps: puts guards on dynamic sizes, and says whether the present ones keep them.
        passes: as for `SavedPrograms`.
        subject: what the graph is made of (`subject_of`).
    """
    data = folder.read(KIND, key)
    if data is None:
        return None
    try:
        written, nodes = json.loads(data)
        known = decoded(written)
        facts = GraphFacts(**known["facts"])
        if facts.sizes is not None:
            inputs = [None] * known["tokens"] + list(fakes)
            facts = dataclasses.replace(facts, sizes=facts.sizes.as_in(inputs))
        static_inputs = frozenset(known["static_inputs"])
        effects, tokens = known["effects"], int(known["tokens"])
    except Exception as error:  # whatever a file of another release may cause
        log.warning("disk cache: a graph cannot be read: %s: %s", type(error).__name__, error)
        return None
    if not keeps(known["guards"]):
        log.info("disk cache: graph %s was traced for other sizes", key[:12])
        return None
    source = SourceGraph(lambda: read_graph(nodes), facts)
    request = Request(options, "inference", keeps_inputs=True, static_inputs=static_inputs)
    record = CompilationRecord(lambda: source.gm, request.kind, log_event, subject)
    record.tell(record)
    metrics.increment("PersistentCacheGraphHit")
    log.info("graph %s loaded from the disk cache", key[:12])
    graph: BoxedGraph
    graph = CompiledGraph(source, request, record, saved=SavedPrograms(folder, key, passes))
    if effects:
        graph = EffectfulGraph(graph, effects)
    return BoxedGraph(_without_tokens(graph.call, tokens)) if tokens else graph


def _without_tokens(call: Call, tokens: int) -> Call:
    """What AOTAutograd makes of the call of a graph with tokens."""

    def run(args: list[Any]) -> list[Any]:
        args[:0] = [None] * tokens
        return call(args)[tokens:]

    return run
