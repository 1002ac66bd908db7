"""Calls from buffers to buffers, for a caller that has buffers already and wants no tensors."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from xla_dynamo.calls.supply import supply_of
from xla_dynamo.lowerings.builders.strides import Sizes, row_major
from xla_dynamo.memory.memory import Memory, Results, Supply
from xla_dynamo.programs.layouts import InputLayout, layout_of
from xla_dynamo.programs.program import Donated, Input, Program, result_types
from xla_dynamo.runtime.jaxlib_private import Buffer

# Takes the buffers of the graph's inputs, each in the layout of its strides, and torch's stream.
# Returns those of the outputs, likewise, and of the inputs that change, by number.
BufferCall: TypeAlias = Callable[
    [Sequence[Buffer], int | None], tuple[list[Buffer], dict[int, Buffer]]
]

strides_layout = functools.lru_cache(maxsize=4096)(layout_of)


def array_shape(size: Sizes, layout: InputLayout) -> tuple[int, ...]:
    """The shape of the array that a tensor is to XLA."""
    return tuple(size[dim] for dim in layout.permutation)


def own_geometries(program: Program) -> list[tuple[Sizes, Sizes] | None]:
    """Of each result, the size and strides of the tensor that it is, whose layout it has.

    None for a result that torch has to expand or to cut out.
    """
    found: list[tuple[Sizes, Sizes] | None] = []
    for (shape, _), slot in zip(result_types(program), program.results, strict=True):
        given = slot.restride
        if given is None:
            found.append((shape, row_major(shape)))
            continue
        layout = layout_of(given.size, given.stride)
        fits = array_shape(given.size, layout) == shape and not (layout.is_dense and given.copies)
        found.append((given.size, given.stride) if fits else None)
    return found


class Binding(NamedTuple):
    """Which results of a program are the graph's outputs and the new values of its inputs.

    Attributes:
        outputs: of each output, the number of the result.
        changed: likewise of the inputs that change, by number.
    """

    outputs: list[int]
    changed: dict[int, int]


def binding_of(program: Program) -> Binding | None:
    """How a program's results are bound; None where torch has to do with inputs or results."""
    changes = [m.output for m in program.mutations]
    if program.effects or program.reads_frozen or any(s.as_bits for s in program.of(Donated)):
        return None
    geometries = own_geometries(program)
    every = (*program.outputs, *changes)
    if not all(o.view is None and o.result is not None and geometries[o.result] for o in every):
        return None
    outputs = [output.result or 0 for output in program.outputs]
    changed: dict[int, int] = {m.index: m.output.result or 0 for m in program.mutations}
    changed |= {
        slot.donated: number
        for number, slot in enumerate(program.results)
        if slot.donated is not None
    }
    return Binding(outputs, changed)


def buffer_call(
    program: Program, memory: Memory, run: Callable[[Sequence[Buffer]], Results]
) -> BufferCall | None:
    """The call of a program on buffers; None where torch has to do with inputs or results.

    Donated inputs are the program's to write into: their buffers are gone afterwards.
    """
    binding = binding_of(program)
    if binding is None:
        return None
    outputs, changed = binding

    def inputs(slots: Sequence[Input]) -> list[Supply]:
        return [
            lambda buffers, stream: memory.taken(slots, [buffers[slot.index] for slot in slots])
        ]

    supply = supply_of(program.arguments, memory, inputs)

    def call(
        buffers: Sequence[Buffer], stream: int | None
    ) -> tuple[list[Buffer], dict[int, Buffer]]:
        results = memory.buffers(run(supply(buffers, stream)))
        return (
            [results[number] for number in outputs],
            {index: results[number] for index, number in changed.items()},
        )

    return call
