"""Compile a graph, and write a dump of its program: see `dumps`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.calls.calls import BoxedGraph
from xla_dynamo.dumps.program_dump import ProgramDump, new_dump
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.subjects import subject_of, titled
from xla_dynamo.lowerings.passes.registered import registered_passes
from xla_dynamo.runtime import metrics


def compile_dumped(
    root: str,
    compile_now: Callable[[Request], BoxedGraph],
    gm: torch.fx.GraphModule,
    request: Request,
) -> BoxedGraph:
    """What `compile_now` makes of a graph, whose program is dumped into a folder in `root`.

    Raises:
        Exception: whatever `compile_now` raises, which is written down beside the dump.
    """
    subject = subject_of(gm)
    dump = new_dump(root, request.kind.replace(" ", "_"), subject)
    if dump is None:
        return compile_now(request)
    metrics.increment("DumpedProgram")
    dump.note_registered(
        [{"name": p.name, "module": p.module, "identity": p.identity} for p in registered_passes()]
    )
    dump.begin(gm, titled(request.kind, subject), written_request(request), request.dynamo_graph)
    try:
        graph = compile_now(dataclasses.replace(request, dump=dump))
    except Exception as error:
        dump.add_error(error)
        raise
    return _DumpedGraph(graph, dump)


class _DumpedGraph(BoxedGraph):
    """A graph that saves the inputs of its first call, and of one that fails."""

    def __init__(self, graph: BoxedGraph, dump: ProgramDump) -> None:
        call, is_called = graph.call, False

        @functools.wraps(call)
        def saving(args: list[Any]) -> list[Any]:
            nonlocal is_called
            if not is_called:
                dump.add_inputs(args)
                is_called = True
            kept = [*args]
            try:
                return call(args)
            except Exception as error:
                dump.add_inputs(kept, again=True)
                dump.add_error(error)
                raise

        super().__init__(saving, graph.chosen_strides)


def written_request(request: Request) -> dict[str, Any]:
    """A request as JSON has it; where the program runs is left out."""
    options = dataclasses.asdict(request.options)
    options["xla_options"] = dict(request.options.xla_options)
    options["dump"] = None
    return {
        "kind": request.kind,
        "options": options,
        "trains": request.trains,
        "keeps_inputs": request.keeps_inputs,
        "static_inputs": sorted(request.static_inputs),
        "results_for_backward": sorted(request.results_for_backward),
        "views_of_inputs": sorted(request.views_of_inputs),
        "input_strides": {str(i): list(s) for i, s in request.input_strides.items()},
        "shardings": {str(i): str(s) for i, s in request.shardings.items()},
    }
