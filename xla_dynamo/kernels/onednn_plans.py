"""Plans of oneDNN's primitives: scripts that make memory of a call's addresses, and execute.

oneDNN's clamp, of which ReLU is one, makes a number of NaN, where torch's is NaN. It does so by
operations that the processor notes as invalid. So what ends with a clamp has a second script, which
computes it without and clamps the result as torch does.
"""

import ctypes
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from xla_dynamo.lowerings.passes.epilogues import ACTIVATIONS, LAST, WITH_OPERAND, PostOp
from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.call_scripts import (
    FIRST_FREE,
    NULL,
    NUMBER_OF_SLOTS,
    Argument,
    Script,
    number,
    place_of_slot,
    slot,
)

# Numbers of oneapi/dnnl/dnnl_types.h: what memory is to a primitive, and what may be asked of one.
SOURCE, RESULT, WEIGHT, BIAS = 1, 17, 33, 41
_POST_OP, _SECOND = 32768, 2  # what is the second operand of a post-op
_BINARY = {"add": 0x1FFF0, "shift": 0x1FFF0, "scale": 0x1FFF1}
_ALLOCATED = -1  # an address: oneDNN has memory of its own
# Slots of what a script makes: at most an image or factor, a weight, a bias, three operands of what
# follows, a result and a scratchpad.
_MADE = range(NUMBER_OF_SLOTS - 8, NUMBER_OF_SLOTS)
# The functions that clamp, by dtype.
CLAMPS = {torch.float32: "clamp", torch.bfloat16: "clamp_bfloat16"}


@dataclasses.dataclass(frozen=True)
class Execution:
    """A primitive, and the memory that it is executed on.

    Attributes:
        desc: its descriptor.
        primitive: the primitive.
        held: memory that the plan holds, by what it is to the primitive.
        read: likewise the description and the address of memory that comes with a call.
    """

    desc: onednn.Object
    primitive: onednn.Object
    held: Mapping[int, onednn.Object]
    read: Mapping[int, tuple[onednn.Object, Argument]]

    def write(self, script: Script, *, checks: bool = False) -> Script:
        """Let a script execute it; with checks it fails where an operation was invalid."""
        library = onednn.library()
        made = {name: (desc.handle, address) for name, (desc, address) in self.read.items()}
        scratchpad, size = onednn.chosen(self.desc, onednn.SCRATCHPAD_DESC)
        if size:
            made[onednn.SCRATCHPAD] = (scratchpad.value or 0, number(_ALLOCATED))
        given = {name: number(memory.handle) for name, memory in self.held.items()}
        engine = number(onednn.engine().handle)
        for place, (name, (desc, address)) in zip(_MADE, made.items(), strict=False):
            create = library.dnnl_memory_create
            script.call(create, place_of_slot(place), number(desc), engine, address)
            given[name] = slot(place)
        if checks:
            script.call(call_scripts.functions["forget"])
        words = [word for name, value in given.items() for word in (number(name), value)]
        script.call(
            library.dnnl_primitive_execute,
            number(self.primitive.handle),
            number(onednn.stream().handle),
            number(len(given)),
            place_of_slot(FIRST_FREE),
            stored=dict(enumerate(words, FIRST_FREE)),
        )
        for place in _MADE[: len(made)]:
            _destroy(script, place)
        if checks:
            script.call(call_scripts.functions["invalid"])
        return script


def scripts_of(
    execution: Callable[[Sequence[PostOp]], Execution],
    then: Sequence[PostOp],
    result: tuple[Argument, int, torch.dtype],
    bounds: ctypes.Array,
) -> tuple[Script, Script | None]:
    """The script of a part of a plan, and the one for NaN.

    Args:
        execution: the part with what follows it.
        then: what follows it.
        result: the address of its result, how many elements that has, and their dtype. It is
            contiguous if a clamp comes last.
        bounds: those of the clamp, which somebody holds (`bounds_of`).
    """
    if not then or then[-1].name not in LAST:
        return execution(then).write(Script()), None
    script, other = execution(then).write(Script(), checks=True), Script()
    for place in _MADE:
        _destroy(other, place)  # what a script that failed had made
    execution(then[:-1]).write(other)
    address, elements, dtype = result
    clamp = call_scripts.functions[CLAMPS[dtype]]
    other.call(clamp, address, number(elements), number(ctypes.addressof(bounds)))
    return script, other


def bounds_of(then: Sequence[PostOp]) -> ctypes.Array:
    """The bounds of the clamp that comes last, if one does, as `float_functions` reads them."""
    clamps = bool(then) and then[-1].name == "clamp"
    low, high = then[-1].numbers if clamps else (0.0, math.inf)
    return (ctypes.c_float * 2)(low, high)


def _destroy(script: Script, place: int) -> None:
    """Destroy memory, and forget it."""
    script.call(onednn.library().dnnl_memory_destroy, slot(place), stored={place: NULL})


def attributes_of(then: Sequence[PostOp], operands: Mapping[str, onednn.Object]) -> onednn.Object:
    """The attributes of a primitive: what follows, and that its scratchpad comes with calls.

    `operands` describes those of what follows, by its name.
    """
    operations = onednn.Object("post_ops", "post_ops_create")
    for one in then:
        if one.name in _BINARY:
            operand = operands[one.name]
            onednn.check("post_ops_append_binary", operations, _BINARY[one.name], operand)
        else:
            known = ACTIVATIONS[one.name]
            numbers = map(ctypes.c_float, (*one.numbers, *known.parameters[len(one.numbers) :]))
            onednn.check("post_ops_append_eltwise", operations, known.algorithm, *numbers)
    attributes = onednn.attributes()
    onednn.check("primitive_attr_set_post_ops", attributes, operations)
    return attributes


def second_operands(then: Sequence[PostOp]) -> list[tuple[int, str]]:
    """What the operand of each of what follows is to a primitive, and the name of what follows."""
    pairs = enumerate(then, 1)
    return [(_POST_OP * i | _SECOND, one.name) for i, one in pairs if one.name in WITH_OPERAND]


class Weights:
    """A weight in the layouts that primitives want."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], weight: torch.Tensor) -> None:
        """Take a weight, and as what shape and strides its memory is read."""
        self.shape = list(shape)
        self._layout = onednn.described(shape, strides, weight.dtype)
        self._plain: torch.Tensor | None = weight
        self._packed: list[tuple[object, torch.Tensor, onednn.Object]] = []

    def packed(self, wanted: tuple[ctypes.c_void_p, int]) -> onednn.Object:
        """The weight in a layout, as oneDNN describes it."""
        desc, size = wanted
        if self._plain is None:
            raise ValueError("the plain weight was given back")
        for known, _, memory in self._packed:
            if onednn.are_equal(known, desc):
                return memory
        bytes_ = onednn.empty(size)
        memory = onednn.memory(desc, bytes_.data_ptr())
        source = onednn.memory(self._layout, self._plain.data_ptr())
        onednn.reorder(onednn.reordering(self._layout, desc), source, memory)
        self._packed.append((desc, bytes_, memory))
        return memory

    def give_back(self) -> None:
        """Hold the plain weight no more: nothing else is to be packed."""
        self._plain = None
