"""Dynamo's graph to a callable: AOTAutograd makes ATen of it, and `compile_graph` compiles that."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from xla_dynamo.calls.calls import BoxedGraph
from xla_dynamo.decompositions.refused_calls import (
    check_outs,
    early_calls_are_refused,
    refusing_decompositions,
)
from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.decompositions.whole_resampling import resampling_is_whole
from xla_dynamo.dumps.program_dump import folder_of_dumps
from xla_dynamo.dynamo.aot_metadata import (
    adds_nothing,
    changed_inputs,
    report_strides,
    restore_views_of_inputs,
    results_for_backward,
    static_input_indices,
    strides_of_saved,
    tokens,
)
from xla_dynamo.dynamo.check_inputs import check_inputs
from xla_dynamo.dynamo.dynamo_trace import log_what_dynamo_does
from xla_dynamo.dynamo.eager_run import run_eagerly
from xla_dynamo.dynamo.float64_changes import compile_keeping_changes
from xla_dynamo.dynamo.joint_partitioner import forward_backward
from xla_dynamo.dynamo.marks_in_place import read_marked_values
from xla_dynamo.dynamo.own_memory import with_own_memory
from xla_dynamo.dynamo.paged_cache import trace_paged_caches
from xla_dynamo.dynamo.recompile_limit import raise_recompile_limit
from xla_dynamo.dynamo.recurrent_layers import prepare_recurrent_layers
from xla_dynamo.dynamo.saved_views import fixed_indices
from xla_dynamo.dynamo.second_order import SecondOrder
from xla_dynamo.dynamo.size_guards import guards_on_sizes, has_dynamic_sizes, take_guards
from xla_dynamo.errors import UnsupportedTensor
from xla_dynamo.events import Observer, log_event
from xla_dynamo.execution import saved_dynamic_graphs, saved_graphs
from xla_dynamo.execution.compile_graph import compile_graph
from xla_dynamo.execution.graph_keys import NoKey, graph_key
from xla_dynamo.execution.overlapping_calls import in_eager_if_overlapping
from xla_dynamo.execution.saved_programs import SavedPrograms, write_entry
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import offset_inputs
from xla_dynamo.graphs.subjects import program_name, subject_of
from xla_dynamo.graphs.wrappers import plain_tensors
from xla_dynamo.lowerings.passes import manager
from xla_dynamo.options import Options
from xla_dynamo.programs.program import Program
from xla_dynamo.programs.targets import choices_of, target_of
from xla_dynamo.runtime import marks, metrics
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.runtime.cache_settings import disk_cache
from xla_dynamo.runtime.clients import placement_of
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.processes.job import joined
from xla_dynamo.runtime.saved_executables import digest
from xla_dynamo.torch_private import (
    aot_autograd,
    inductor_config,
    is_traceable_wrapper_subclass,
)
from xla_dynamo.torch_threads import let_threads_register, tracing_here

log = logging.getLogger("xla_dynamo")
_OF_DYNAMO = ("inference", "forward", "backward")


def openxla(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend behind `torch.compile(model, backend="openxla", options=..., mode=...)`.

    `torch.compile` takes either options or a mode; called directly, options come before the mode.

    Raises:
        OptionError: an option or the mode is unknown, or an option has the wrong type.
        UnsupportedTensor: an input is sparse, quantized or on a device without a PJRT plugin, or
            the inputs are on several devices.
        UnsupportedOperator: the graph has an operator without a rule, or drops between the layers
            of a recurrent network.
    """
    parsed = Options.parse(options, mode)
    folder = disk_cache()
    # At several sizes, the programs of a graph under `freeze` share values of this process.
    is_shared = parsed.freeze and has_dynamic_sizes(gm)
    is_of_several = joined() is not None  # whose programs may be others in each process
    is_dumped = folder_of_dumps(parsed.dump) is not None  # what is saved has no graph to show
    if folder is None or is_shared or is_of_several or is_dumped or marks.were_ever_there():
        return compile_torch_graph(gm, example_inputs, parsed)
    return _saved_or_compiled(gm, example_inputs, parsed, folder)


def _saved_or_compiled(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options, folder: CacheFolder
) -> Callable[..., Any]:
    """What `compile_torch_graph` gives, or what the disk cache has of it."""
    passes = manager.state()  # before the key is made of them: another thread may register more
    try:
        device = _device_of(example_inputs)
        placement = placement_of(device)
        target = target_of(placement.platform, options)
        graph = graph_key(gm, example_inputs, options, target)
    except (NoKey, UnsupportedTensor) as reason:
        log.info("disk cache: no place for the program of a graph: %s", reason)
        return compile_torch_graph(gm, example_inputs, options)

    def key_now() -> str:
        """The key of the graph's programs, which are others when forms have been measured."""
        return digest([graph, choices_of(target)])

    key = key_now()
    if is_dynamic := has_dynamic_sizes(gm):
        guard = functools.partial(take_guards, gm)
        fakes = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        saved_graph = saved_dynamic_graphs.load(
            folder, key, options, fakes, guard, passes, subject_of(gm)
        )
        call = None if saved_graph is None else saved_graphs.as_aot_autograd_calls(saved_graph)
    else:
        name = program_name(gm, "inference")
        call = saved_graphs.load(folder, key, options, placement, name)
    if call is not None:
        metrics.increment("DynamoExtractCompiledGraph")
        return torch.compiler.disable(call, reason="a compiled graph")
    watch = saved_graphs.Watch(log_event)
    saved = SavedPrograms(folder, key, passes) if is_dynamic else None
    compiled = compile_torch_graph(gm, example_inputs, options, observer=watch, saved=saved)

    def save(program: Program) -> None:
        if manager.state() == passes:
            write_entry(folder, key_now(), program)

    watch.close(save)
    if watch.dynamic_graph is not None:
        guards = guards_on_sizes(gm)
        saved_dynamic_graphs.save(folder, key, watch.dynamic_graph, guards, watch.tokens)
    return compiled


def _device_of(inputs: Sequence[Any]) -> torch.device:
    """The device of all inputs.

    Raises:
        NoKey: there are several, none, or one of the 'xla' device.
    """
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    if len(devices) != 1 or (device := devices.pop()).type not in ("cpu", "cuda"):
        raise NoKey("its inputs are not on one device of torch's")
    return device


def compile_torch_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    *,
    kind: str = "inference",
    trains: bool = False,
    of_host: Collection[int] = (),
    placement: Placement | None = None,
    shardings: Mapping[int, Sharding] = MappingProxyType({}),
    compiled: Callable[[BoxedGraph], None] | None = None,
    observer: Observer = log_event,
    saved: SavedPrograms | None = None,
    road: Callable[..., BoxedGraph] = compile_graph,
) -> Callable[..., Any]:
    """Compile a graph of torch's functions: the work behind `openxla`.

    Args:
        gm: Dynamo's graph.
        example_inputs: what it is called with.
        options: checked ones.
        kind: what a graph without gradients is called in logs and reports.
        trains: whether it is a training step all the same.
        of_host: inputs, by number, that are on the CPU wherever the others are.
        placement: where it runs; None where its tensors are.
        shardings: of inputs, by number, if `placement` says where the program runs; else each call
            looks at the marks of its tensors.
        compiled: is given each graph of AOTAutograd's when it is compiled.
        observer: is told of every graph and executable, of later ones too.
        saved: where programs at dynamic sizes are saved, of a graph to which AOTAutograd adds
            nothing.
        road: is given each graph of AOTAutograd's in the place of `compile_graph`.
    """
    log_what_dynamo_does()
    check_inputs(gm, example_inputs, of_host)
    if options.freeze and any(map(_changes_uncounted, example_inputs)):
        options = dataclasses.replace(options, freeze=False)
    prepare_recurrent_layers(gm)
    read_marked_values(gm)
    is_dumped = folder_of_dumps(options.dump) is not None
    dynamo_graph = gm.print_readable(print_output=False) if is_dumped else None

    def request_of(kind: str, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Request:
        if kind == "backward":
            # Its forward made its inputs, which never come again, or handed over parameters.
            strides = strides_of_saved(gm, inputs)
            return Request(
                options,
                kind,
                True,
                static_inputs=fixed_indices(gm),
                input_strides=strides,
                placement=placement,
                observer=observer,
                dynamo_graph=dynamo_graph,
            )
        return Request(
            options,
            kind,
            trains=trains or kind == "forward",
            keeps_inputs=True,
            static_inputs=static_input_indices(),
            results_for_backward=results_for_backward(gm) if kind == "forward" else frozenset(),
            views_of_inputs=restore_views_of_inputs(gm),
            placement=placement,
            shardings=shardings,
            observer=observer,
            dynamo_graph=dynamo_graph,
        )

    changed: set[int] = set()
    # What lives on must not hold the inputs themselves.
    counts = [len(plain_tensors(x)) if isinstance(x, torch.Tensor) else 1 for x in example_inputs]
    apart = with_own_memory(gm, example_inputs)

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_aten(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            if kind != "backward":
                changed.update(changed_inputs(gm, counts))
            is_plain = kind == "inference" and adds_nothing() and not offset_inputs(gm)
            is_plain &= saved is not None or not tokens()  # which entries of static sizes lack
            request = request_of(kind, gm, inputs)
            if kind in _OF_DYNAMO:
                metrics.increment("DynamoExtractCompiledGraph")
            graph = road(gm, inputs, request, saved if is_plain else None)
            if isinstance(observer, saved_graphs.Watch):
                observer.is_plain = is_plain
                if is_plain and saved is not None and saved_dynamic_graphs.is_saved(graph):
                    observer.dynamic_graph, observer.tokens = graph, tokens()
            report_strides(gm, graph.chosen_strides)
            if compiled is not None:
                compiled(graph)
            return graph.call

        return compile_aten

    second_order = SecondOrder(gm, example_inputs, options.rng == "torch")

    def partition(joint: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        second_order.read_joint(joint, kwargs["num_fwd_outputs"])
        return forward_backward(joint, inputs, **kwargs)

    table = decompositions
    if placement is None:  # else they are operators of the 'xla' device, which eager does not have
        table = refusing_decompositions
        check_outs(gm)
    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler(kind),
        decompositions=table(options.rng),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(resampling_is_whole())
        stack.enter_context(tracing_here())
        if placement is None:
            stack.enter_context(early_calls_are_refused())
        if options.rng == "torch":
            # A draw that nobody reads is not dead: it leaves the generator in eager's state.
            stack.enter_context(inductor_config.patch(fallback_random=True))
        call = compile_keeping_changes(gm, lambda: backend(gm, apart))
    call = second_order.watch(call)
    return in_eager_if_overlapping(
        call, lambda *args: run_eagerly(gm, args), changed, example_inputs
    )


def _changes_uncounted(value: Any) -> bool:
    """Whether a tensor changes where `freeze` cannot see it.

    A wrapper's changes in place do not count at its inner tensors, and those of a tensor of the
    'xla' device do not count at the memory that it has at the time.
    """
    if not isinstance(value, torch.Tensor):
        return False
    return is_traceable_wrapper_subclass(value) or value.device.type == "xla"


trace_paged_caches()
let_threads_register(asked=trace_paged_caches)  # whoever looks us up has imported this file before
log_what_dynamo_does()  # what breaks the very first graph comes before it
raise_recompile_limit()
