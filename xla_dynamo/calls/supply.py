"""The buffers of a program's arguments, slot by slot: the one loop that every call begins with."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from xla_dynamo.calls.packed_values import pack
from xla_dynamo.calls.seeds import draw_seed
from xla_dynamo.lowerings.passes.contraction_barriers import NEGATIVE_ZERO
from xla_dynamo.memory.memory import Memory, Supply
from xla_dynamo.programs.program import (
    Constant,
    FrozenValue,
    Handles,
    Input,
    NegativeZero,
    Seed,
    Slot,
)
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.streams import after_torch

# Give functions for the buffers of inputs, and of frozen values, in the order of their slots.
InputParts: TypeAlias = Callable[[Sequence[Input]], list[Supply]]
FrozenPart: TypeAlias = Callable[[Sequence[FrozenValue | Handles]], Supply]


def supply_of(
    slots: Sequence[Slot], memory: Memory, inputs: InputParts, frozen: FrozenPart | None = None
) -> Supply:
    """The function that gives the buffers of all arguments of a program, in their order.

    Args:
        slots: the arguments.
        memory: where the program runs.
        inputs: gives the functions for the inputs of a call.
        frozen: gives the function for frozen values; None for a program without.
    """

    def constants(slots: Sequence[Constant]) -> list[Supply]:
        return [memory.constants(slots)]

    def seeds(slots: Sequence[Seed]) -> list[Supply]:
        return [lambda _, stream: [memory.fresh(draw_seed(memory.placement), stream)]]

    def negative_zeros(slots: Sequence[NegativeZero]) -> list[Supply]:
        return [memory.constants([Constant(NEGATIVE_ZERO, is_literal=True)])]

    def frozen_values(slots: Sequence[FrozenValue | Handles]) -> list[Supply]:
        assert frozen is not None, "a frozen value, and nobody who computes it"
        return [frozen(slots)]

    def plans(slots: Sequence[Handles]) -> list[Supply]:
        buffers = [pack(slot.calls, [()] * len(slot.calls), memory.placement) for slot in slots]
        return [lambda _, stream: buffers]

    by_kind: dict[type, Callable[[Any], list[Supply]]] = {
        Input: inputs,
        Constant: constants,
        Seed: seeds,
        NegativeZero: negative_zeros,
        FrozenValue: frozen_values,
        Handles: frozen_values,
    }

    def supplier(slot: Slot) -> Callable[[Any], list[Supply]]:
        if isinstance(slot, Handles) and not slot.reads_frozen:
            return plans
        return by_kind[Input if isinstance(slot, Input) else type(slot)]

    parts = [
        part
        for parts_of, group in itertools.groupby(slots, supplier)
        for part in parts_of(list(group))
    ]
    supply = parts[0] if len(parts) == 1 else _in_a_row(parts)
    placement = memory.placement
    if not placement.has_streams or placement.tensors is not None:
        return supply
    # Torch may copy inputs first, so what the program waits for is said when all are there.
    return lambda args, stream: after_torch(supply(args, None), placement)


def _in_a_row(parts: Sequence[Supply]) -> Supply:
    def supply(args: Sequence[Any], stream: int | None) -> list[Buffer]:
        buffers: list[Buffer] = []
        for part in parts:
            buffers += part(args, stream)
        return buffers

    return supply
