"""Graphs of dynamic sizes in the disk cache, which a later process calls without a trace of them.

An entry has what calls need to know of the graph, and the graph itself, which is read when a call
needs a program that is not saved. The programs have entries of their own (`saved_programs`).
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from xla_dynamo.errors import StorageError
from xla_dynamo.events import CompilationRecord, log_event
from xla_dynamo.execution.compiled_graph import CompiledGraph
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


def save(folder: CacheFolder, key: str, graph: CompiledGraph, guards: str) -> None:
    """Write a graph of inference as AOTAutograd made it, and the guards on its dynamic dimensions.

    Args:
        folder: the disk cache.
        key: that of Dynamo's graph.
        graph: the graph.
        guards: those that its trace put on dynamic sizes.
    """
    source = graph.source
    facts = {f.name: getattr(source.facts, f.name) for f in dataclasses.fields(source.facts)}
    fixed = tuple(sorted(graph.request.static_inputs))
    try:
        written = encoded({"guards": guards, "facts": facts, "static_inputs": fixed})
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
) -> CompiledGraph | None:
    """The graph of this key; None if it is not there.

    Args:
        folder: the disk cache.
        key: that of Dynamo's graph.
        options: those of the key.
        fakes: the fake values of the graph's inputs, of dynamic sizes.
        keeps: puts guards on dynamic sizes, and says whether the present ones keep them.
        passes: as for `SavedPrograms`.
    """
    data = folder.read(KIND, key)
    if data is None:
        return None
    try:
        written, nodes = json.loads(data)
        known = decoded(written)
        facts = GraphFacts(**known["facts"])
        if facts.sizes is not None:
            facts = dataclasses.replace(facts, sizes=facts.sizes.as_in(fakes))
        static_inputs = frozenset(known["static_inputs"])
    except Exception as error:  # whatever a file of another release may cause
        log.warning("disk cache: a graph cannot be read: %s: %s", type(error).__name__, error)
        return None
    if not keeps(known["guards"]):
        log.info("disk cache: graph %s was traced for other sizes", key[:12])
        return None
    source = SourceGraph(lambda: read_graph(nodes), facts)
    request = Request(options, "inference", keeps_inputs=True, static_inputs=static_inputs)
    record = CompilationRecord(lambda: source.gm, request.kind, log_event)
    record.tell(record)
    metrics.increment("PersistentCacheGraphHit")
    log.info("graph %s loaded from the disk cache", key[:12])
    return CompiledGraph(source, request, record, saved=SavedPrograms(folder, key, passes))
