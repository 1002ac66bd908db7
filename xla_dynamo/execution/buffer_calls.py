"""Calls from buffers to buffers, for a caller that has buffers already and wants no tensors."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from xla_dynamo.execution.constants import negative_zero, own_arguments
from xla_dynamo.lowerings.builders.strides import Sizes, row_major
from xla_dynamo.programs.layouts import InputLayout, layout_of
from xla_dynamo.programs.program import Program, result_types
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.placement import Placement

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
    for number, (shape, _) in enumerate(result_types(program)):
        given = program.restrides.get(number)
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
    if program.effects or program.frozen:
        return None
    geometries = own_geometries(program)
    every = (*program.outputs, *changes)
    if not all(o.view is None and o.result is not None and geometries[o.result] for o in every):
        return None
    outputs = [output.result or 0 for output in program.outputs]
    changed: dict[int, int] = {m.index: m.output.result or 0 for m in program.mutations}
    first = program.results - len(program.donations)
    changed |= {donated.index: first + place for place, donated in enumerate(program.donations)}
    return Binding(outputs, changed)


def buffer_call(
    program: Program, placement: Placement, run: Callable[[Sequence[Buffer]], list[list[Buffer]]]
) -> BufferCall | None:
    """The call of a program on buffers; None where torch has to do with inputs or results.

    Donated inputs are the program's to write into: their buffers are gone afterwards.
    """
    binding = binding_of(program)
    if binding is None:
        return None
    outputs, changed = binding
    order = [a.index for a in (*program.donations, *program.inputs, *program.static_inputs)]
    own = own_arguments(program, placement)
    last = [negative_zero(placement)] if program.takes_negative_zero else []

    def call(
        buffers: Sequence[Buffer], stream: int | None
    ) -> tuple[list[Buffer], dict[int, Buffer]]:
        arguments = [buffers[index] for index in order]
        if own is not None:
            arguments += own(stream)
        results = run(arguments + last)
        return (
            [results[place][0] for place in outputs],
            {index: results[place][0] for index, place in changed.items()},
        )

    return call
