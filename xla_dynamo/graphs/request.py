"""The request that a feeder hands to `compile_graph` together with a graph."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from xla_dynamo.dumps.program_dump import ProgramDump
from xla_dynamo.options import Options
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.runtime.placement import Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Everything that a feeder knows about a graph and the graph itself does not say.

    Attributes:
        options: the user's options.
        kind: what the graph is called in logs and reports: "inference", "forward", "backward",
            "training step" or other.
        trains: whether the graph has a backward, or is one.
        keeps_inputs: whether inputs may come again: they are then imported once, and recognized by
            address.
        static_inputs: the inputs, by number, that are parameters and buffers.
        results_for_backward: the results, by number, that only the backward reads: the passes may
            choose their strides, which `BoxedGraph.chosen_strides` then tells.
        views_of_inputs: the results, by number, that eager gives as views of an input.
        input_strides: the strides of inputs, by number, that do not have the traced ones.
        placement: where the program runs; None where the graph's tensors are.
        mesh: the mesh that the program is partitioned over; None for a program of one device.
        shardings: how inputs, by number, are sharded over it; the others are whole on each device.
        observer: is called with the events of the compilation (see `events`); None writes to the
            log.
        dynamo_graph: the code of the graph that AOTAutograd was given, for a dump.
        dump: where the program is dumped.
    """

    options: Options = dataclasses.field(default_factory=Options)
    kind: str = "graph"
    trains: bool = False
    keeps_inputs: bool = False
    static_inputs: frozenset[int] = frozenset()
    results_for_backward: frozenset[int] = frozenset()
    views_of_inputs: frozenset[int] = frozenset()
    input_strides: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    placement: Placement | None = None
    mesh: Mesh | None = None
    shardings: Mapping[int, Sharding] = dataclasses.field(default_factory=dict)
    observer: Callable[[Any], None] | None = None
    dynamo_graph: str | None = None
    dump: ProgramDump | None = None
