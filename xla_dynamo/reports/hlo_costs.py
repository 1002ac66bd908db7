"""The floating-point operations and bytes of a run of each instruction of optimized HLO."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from xla_dynamo.reports.hlo_text import Array, Instruction, Module
from xla_dynamo.reports.library_costs import library_flops, moves_only

_NAMES = (
    "add subtract multiply divide maximum minimum power remainder negate abs sign exponential "
    "exponential-minus-one log log-plus-one logistic tanh sqrt rsqrt cbrt sine cosine tan atan2 "
    "erf floor ceil round-nearest-afz round-nearest-even complex"
)
_ELEMENTWISE = frozenset(_NAMES.split())
_FLOATS = ("f", "bf", "c")
# These move nothing: they are other names of their operands.
_FREE = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"))
_PARTS = frozenset(("slice", "dynamic-slice", "gather"))


@dataclasses.dataclass(frozen=True, slots=True)
class OperationCost:
    """What an instruction costs.

    Attributes:
        flops: floating-point operations: an addition or a multiplication is one, and so is an
            exponential.
        bytes: read and written, each operand and result once, as if no cache held any of it.
        dtype: HLO's name of the type that it computes in, as "bf16".
    """

    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = "f32"


def costs_of(module: Module, notes: Mapping[str, Any]) -> dict[str, OperationCost]:
    """The cost of a run of each instruction, by name; of a loop, that of all its turns.

    Args:
        module: the program.
        notes: the `NodeNote` of each node of the graph, by which calls of libraries are counted.
    """
    counted = _Counted(module, notes)
    return {
        name: OperationCost(counted.flops(one), counted.bytes(one), counted.dtype(one))
        for name, one in module.instructions.items()
    }


class _Counted:
    def __init__(self, module: Module, notes: Mapping[str, Any]) -> None:
        self._module, self._notes = module, notes
        self._known: dict[str, float] = {}
        # A node may become several calls, which share its operations, and some that only move.
        self._calls = Counter(
            one.attribute("op_name")
            for one in module.instructions.values()
            if one.opcode == "custom-call" and not moves_only(one)
        )

    def flops(self, one: Instruction) -> float:
        if one.name not in self._known:
            self._known[one.name] = self._flops(one)
        return self._known[one.name]

    def _flops(self, one: Instruction) -> float:
        if one.opcode == "dot":
            return self._of_dot(one)
        if one.opcode == "convolution":
            return self._of_convolution(one)
        if one.opcode == "custom-call":
            return self._of_library(one)
        elements = sum(array.elements for array in one.arrays)
        if one.opcode in _ELEMENTWISE:
            return float(elements) if _is_float(one) else 0.0
        if one.opcode in ("reduce", "reduce-window", "map", "scatter", "sort"):
            if one.opcode == "sort" or not _is_float(one):
                return 0.0
            given = self._arrays(one)
            return float(given[0].elements if given else elements)
        bodies = [i for name in one.called for i in self._module.computations.get(name, ())]
        return (one.trip_count or 1) * sum(map(self.flops, bodies))

    def _arrays(self, one: Instruction) -> list[Array]:
        known = self._module.instructions
        return [a for name in one.operands if name in known for a in known[name].arrays]

    def _of_dot(self, one: Instruction) -> float:
        given = self._arrays(one)
        contracted = one.attribute("lhs_contracting_dims")
        elements = 2.0 * sum(array.elements for array in one.arrays)
        for dim in contracted.split(","):
            if dim and given:
                elements *= given[0].sizes[int(dim)]
        return elements

    def _of_convolution(self, one: Instruction) -> float:
        given, labels = self._arrays(one), one.attribute("dim_labels")
        if len(given) < 2 or "_" not in labels:
            return 0.0
        kernel, names = given[1], labels.split("_")[1].split("->")[0]
        if "lhs_dilate=" in one.text:  # most of what it meets are zeros between the elements
            groups = int(one.attribute("feature_group_count") or 1)
            inner = kernel.sizes[names.index("i")] * groups
            return 2.0 * given[0].elements * kernel.elements / max(inner, 1)
        features = kernel.sizes[names.index("o")]
        return 2.0 * one.arrays[0].elements * kernel.elements / max(features, 1)

    def _of_library(self, one: Instruction) -> float:
        node = one.attribute("op_name")
        shares = self._calls[node] * self._module.partitions
        known = self._module.instructions
        layout = next((i for n in one.operands if (i := known.get(n)) and moves_only(i)), None)
        unpacked = self._operand(layout, 1)[0] if layout is not None else None
        return library_flops(one, self._arrays(one), unpacked, self._notes.get(node), shares)

    def bytes(self, one: Instruction) -> float:
        if one.opcode in _FREE:
            return 0.0
        written = sum(array.bytes for array in one.arrays)
        if one.opcode in _PARTS:
            return 2.0 * written
        if one.opcode == "dynamic-update-slice":
            return 2.0 * sum(a.bytes for a in self._operand(one, 1))
        if one.opcode in ("while", "conditional", "call"):
            bodies = [i for name in one.called for i in self._module.computations.get(name, ())]
            return (one.trip_count or 1) * sum(map(self.bytes, bodies))
        read = sum(self._read(one, number) for number in range(len(one.operands)))
        return float(written + read)

    def _operand(self, one: Instruction, number: int) -> list[Array]:
        known = self._module.instructions.get(one.operands[number])
        return known.arrays if known is not None else []

    def _read(self, one: Instruction, number: int) -> float:
        """What is read of an operand: of one of which a fusion takes parts, those."""
        whole = sum(array.bytes for array in self._operand(one, number))
        if one.opcode != "fusion" or not one.called:
            return whole
        body = self._module.computations.get(one.called[0], [])
        text = f"parameter({number})"
        name = next((i.name for i in body if i.text.startswith(text)), None)
        users = [i for i in body if name in i.operands]
        if users and all(i.opcode in _PARTS and i.operands[0] == name for i in users):
            return min(whole, sum(array.bytes for i in users for array in i.arrays))
        return whole

    def dtype(self, one: Instruction) -> str:
        """The narrowest floating-point type among operands, as products accumulate in wider."""
        types = {a.dtype for a in self._arrays(one) + one.arrays if a.dtype.startswith(_FLOATS)}
        return next((t for t in ("bf16", "f16", "f32") if t in types), "f32")


def _is_float(one: Instruction) -> bool:
    arrays = one.arrays
    return bool(arrays) and arrays[0].dtype.startswith(_FLOATS)
