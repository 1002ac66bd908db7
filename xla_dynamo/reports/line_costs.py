"""What each line of the user's program will cost: an estimate from the program, without a run."""

import collections
import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from xla_dynamo.events import BuiltExecutable
from xla_dynamo.reports.hlo_places import Place, places_of
from xla_dynamo.reports.hlo_text import Instruction, Module, parse

# A byte takes as long as so many operations: today's CPUs and GPUs compute 5 to 20 in float32 in
# the time in which they read one from memory. Only shares are told, and they depend little on it.
_FLOPS_PER_BYTE = 10.0
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "broadcast"),
}
_CONTAINERS = frozenset(["fusion", "call", "while", "conditional"])
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
# torch counts these by other names: with the same arguments in front.
_SAME = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        torch.ops.aten._scaled_dot_product_flash_attention
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ),
}
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")


@dataclasses.dataclass(frozen=True, slots=True)
class LineCost:
    """What one line of the user's program is estimated to cost in one run of a program.

    Attributes:
        file, line: where it is; "" and 0 for what has no line of its own, as optimizers.
        flops: floating-point operations, those in calls of libraries included.
        bytes: read and written. Of a fusion of several lines each has an equal part.
        share: the part of the whole program's estimated time, from 0 to 1.
        operators: the names of the graph's nodes there.
    """

    file: str
    line: int
    flops: float
    bytes: float
    share: float
    operators: tuple[str, ...]


def line_costs(built: BuiltExecutable) -> list[LineCost]:
    """The estimated costs of a program's lines, the most expensive first."""
    if built.executable is None:
        return []
    text, _, notes = built.executable.text_and_notes()
    module = parse(text)
    flops = node_flops(built.graph.graph().graph, built.sizes)
    return costs_of(module, places_of(module, notes), flops)


def costs_of(
    module: Module, places: Mapping[str, tuple[Place, ...]], flops_of: Mapping[str, float]
) -> list[LineCost]:
    """The same of a module, whose instructions come from these places.

    `flops_of` has the operations of nodes of the graph, by name, for calls of libraries, of which
    the program does not tell.
    """
    flops: dict[tuple[str, int], float] = collections.defaultdict(float)
    moved: dict[tuple[str, int], float] = collections.defaultdict(float)
    names: dict[tuple[str, int], set[str]] = collections.defaultdict(set)
    time: dict[tuple[str, int], float] = collections.defaultdict(float)
    for instruction, times, nbytes, count in _units(module, flops_of):
        found = places.get(instruction.name) or (Place("", 0),)
        keys = {(p.file, p.line) for p in found}
        for place in found:
            names[place.file, place.line].add(re.sub(r"_\d+$", "", place.operators))
        for key in keys:
            flops[key] += times * count / len(keys)
            moved[key] += times * nbytes / len(keys)
            time[key] += times * max(count / _FLOPS_PER_BYTE, nbytes) / len(keys)
    whole = sum(time.values()) or 1.0
    return [
        LineCost(*key, flops[key], moved[key], time[key] / whole, tuple(sorted(names[key] - {""})))
        for key in sorted(time, key=lambda key: -time[key])
    ]


def _units(
    module: Module, flops_of: Mapping[str, float]
) -> list[tuple[Instruction, int, float, float]]:
    """What runs as one: the instruction, how often, its bytes and its operations."""
    found: list[tuple[Instruction, int, float, float]] = []

    def visit(computation: str, times: int) -> None:
        within = {i.name: i for i in module.computations.get(computation, ())}
        for one in within.values():
            if one.opcode in _FREE:
                continue
            if one.opcode in _CONTAINERS and one.opcode != "fusion":
                for inner in one.called:
                    visit(inner, times * (one.trip_count or 1))
                continue
            read = sum(within[name].bytes for name in one.operands if name in within)
            found.append((one, times, read + one.bytes, _flops(module, one, within, flops_of)))

    visit(module.entry, 1)
    return found


def _flops(
    module: Module,
    one: Instruction,
    within: Mapping[str, Instruction],
    flops_of: Mapping[str, float],
) -> float:
    if one.opcode == "fusion":
        body = {i.name: i for name in one.called for i in module.computations.get(name, ())}
        return sum(_flops(module, i, body, flops_of) for i in body.values())
    if one.opcode == "custom-call":
        return flops_of.get(one.node, 0.0)
    operands = [within[name] for name in one.operands if name in within]
    if one.opcode == "dot" and operands and (dims := _CONTRACTED.search(one.text)):
        size = operands[0].arrays[0].sizes
        return 2.0 * one.elements * math.prod(size[int(d)] for d in dims[1].split(",") if d)
    if one.opcode == "convolution" and len(operands) == 2 and (labels := _LABELS.search(one.text)):
        kernel = operands[1].arrays[0].sizes
        return 2.0 * one.elements * math.prod(kernel) / kernel[labels[1].index("o")]
    if one.opcode in ("reduce", "reduce-window", "sort") and operands:
        return float(operands[0].elements)
    moves = one.opcode in _FREE or one.opcode in ("copy", "transpose", "slice", "gather", "reshape")
    return (
        0.0 if moves or not one.arrays or one.arrays[0].dtype[0] in "psu" else float(one.elements)
    )


def node_flops(graph: torch.fx.Graph, sizes: Mapping[str, Any]) -> dict[str, float]:
    """The floating-point operations of a graph's products, convolutions and attention, by node.

    torch's own formulas (`torch.utils.flop_counter`) count them.

    Args:
        graph: the graph, whose nodes have fake values.
        sizes: the values of symbolic sizes, by name.
    """
    found: dict[str, float] = {}
    for node in graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        formula = flop_registry.get(_SAME.get(packet, packet))
        if formula is None:
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda given: given.meta.get("val"))
        try:
            count = formula(*args, **kwargs, out_val=node.meta.get("val"))
            found[node.name] = float(_number(count, sizes))
        except (TypeError, ValueError, AssertionError, IndexError):
            continue  # an estimate goes without it
    return found


def _number(count: Any, sizes: Mapping[str, Any]) -> float:
    if not isinstance(count, torch.SymInt):
        return float(count)
    known = {str(s): s for s in count.node.expr.free_symbols}
    return float(count.node.expr.subs({s: sizes[n] for n, s in known.items() if n in sizes}))
