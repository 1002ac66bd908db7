"""The one road to the device: an ATen graph to a callable, whichever feeder brings the graph."""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.calls.calls import BoxedGraph, Call
from xla_dynamo.calls.effects import take_effects
from xla_dynamo.dumps.program_dump import folder_of_dumps
from xla_dynamo.events import CompilationRecord, log_event
from xla_dynamo.execution.compiled_graph import CompiledGraph
from xla_dynamo.execution.dumped_graph import compile_dumped
from xla_dynamo.execution.effectful_graph import EffectfulGraph
from xla_dynamo.execution.saved_programs import SavedPrograms
from xla_dynamo.execution.split_graph import Part, SplitGraph
from xla_dynamo.execution.traced_strides import taking_strides
from xla_dynamo.graphs.fallback import TWO_PROGRAMS, split
from xla_dynamo.graphs.fold_batch_norms import fold_batch_norms
from xla_dynamo.graphs.manual_regions import check_eager
from xla_dynamo.graphs.preparation import prepare
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import is_symbolic
from xla_dynamo.graphs.source_graph import source_of
from xla_dynamo.graphs.subjects import subject_of


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    request: Request | None = None,
    saved: SavedPrograms | None = None,
) -> BoxedGraph:
    """Compile an ATen graph whose nodes carry fake values in `meta["val"]`.

    Args:
        gm: the graph: functional ATen overloads, with at most closing `copy_` into its inputs.
        example_inputs: what it is called with: tensors (fake ones will do), numbers, sizes.
        request: the options, and what else the caller knows about the graph (see `Request`).
        saved: where its programs at dynamic sizes are saved, if they may be.

    Raises:
        UnsupportedOperator, UnsupportedDtype, LoweringError, CompileError: see `errors`.
    """
    request = request or Request()
    if (root := folder_of_dumps(request.options.dump)) is None:
        return compile_undumped(gm, example_inputs, request, saved)
    return compile_dumped(
        root, lambda asked: compile_undumped(gm, example_inputs, asked, saved), gm, request
    )


def compile_undumped(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    request: Request,
    saved: SavedPrograms | None = None,
) -> BoxedGraph:
    """What `compile_graph` does, whether dumps are wanted or not."""
    options = request.options
    observer = request.observer or log_event
    record = CompilationRecord(lambda: gm, request.kind, observer, subject_of(gm))
    if request.dump is not None:
        request.dump.note_graph(record.name)
    prepare(gm)
    device = _device_of(gm, example_inputs)
    if options.freeze and not request.trains and device.type == "cpu":
        fold_batch_norms(gm, request.static_inputs)
    effects = take_effects(gm) if is_symbolic(gm) else []
    schedule = split(gm, options)
    if schedule is not None:
        check_eager(gm, schedule.eager)
        by_torch = {n: why for n, why in schedule.eager.items() if why != TWO_PROGRAMS}
        record.note_split(by_torch, schedule.number_of_parts())
    record.tell(record)
    numbers = itertools.count(1)

    def compile_part(part: Part) -> Call:
        asked = dataclasses.replace(
            request,
            keeps_inputs=request.keeps_inputs and not part.takes_new_tensors,
            static_inputs=part.static_inputs,
            views_of_inputs=part.views_of_inputs,
            results_for_backward=frozenset(),
            input_strides={},
            shardings={},
        )
        part_device = _device_of(part.gm, _promised_inputs(part.gm))
        source = source_of(part.gm, part_device, asked)
        return CompiledGraph(source, asked, record, next(numbers)).call

    def compile_loop(gm: torch.fx.GraphModule) -> Call:
        kind, where = "steps of a loop", request.placement
        asked = Request(options, kind, placement=where, observer=request.observer)
        return compile_graph(gm, _promised_inputs(gm), asked).call

    compiled: BoxedGraph
    if schedule is None:
        compiled = CompiledGraph(source_of(gm, device, request), request, record, saved=saved)
    else:
        compiled = SplitGraph(gm, schedule, request, compile_part, compile_loop)
        fakes = _promised_inputs(gm)
        traced = {index: fakes[index].stride() for index in request.input_strides}
        compiled.call = taking_strides(traced, compiled.call)
    if effects:
        compiled = EffectfulGraph(compiled, effects)
    record.seconds = time.perf_counter() - record.start
    return compiled


def _promised_inputs(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]


def _device_of(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> torch.device:
    """The device of the inputs, else of whatever the graph makes, else the CPU."""
    tensors = [a for a in example_inputs if isinstance(a, torch.Tensor)]
    tensors += [v for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    devices = [t.device for t in tensors]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
