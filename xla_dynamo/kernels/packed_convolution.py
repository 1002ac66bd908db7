"""Convolutions by oneDNN with weights in its own layout, and plans that execute them.

A convolution is made once for a form, a weight and a bias: oneDNN says which layout it wants, and
the weight is brought into it. What follows (bias, activation, sum) is computed on the way, by
oneDNN's post-ops, and the result is written into the program's memory.

oneDNN's clamp, of which ReLU is one, makes a number of NaN, where torch's is NaN. It does so by
operations that the processor notes as invalid. So each part of a convolution with a clamp has a
second script, which computes it without and clamps the result as torch does.
"""

import contextlib
import ctypes
import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.convolution_parts import Part, parts_of
from xla_dynamo.kernels.library_calls import script_call
from xla_dynamo.kernels.onednn_convolution import OneDNNConvolution
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import PackedKernel, register
from xla_dynamo.lowerings.passes.epilogues import ACTIVATIONS, LAST, PostOp, epilogue_of
from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.call_scripts import (
    FIRST_FREE,
    NULL,
    Plan,
    Script,
    number,
    place_of_slot,
    slot,
)

# Numbers of oneapi/dnnl/dnnl_types.h: what memory is to a primitive, and what may be asked of one.
_SOURCE, _RESULT, _WEIGHT, _BIAS = 1, 17, 33, 41
_POST_OP, _SECOND = 32768, 2  # what is the second operand of a post-op
_WEIGHT_DESC, _INFERENCE, _ADD = 131, 96, 0x1FFF0
_ALLOCATED = -1  # an address: oneDNN has memory of its own
# Kernels that others of oneDNN's beat: on AVX2 by 1.1 to 3.5 times, most where there are many
# channels, or each is convolved by itself.
_FASTER = {"brgconv_1x1:avx2": "jit_1x1:avx2", "brdgmm_dw:avx2": "jit_dw:avx2"}
# Slots of what a script makes: at most an image, a sum's operand, a result and a scratchpad.
_MADE = range(20, 24)


@register
@dataclasses.dataclass(frozen=True)
class PackedConvolution(PackedKernel):
    """A convolution of images of two dimensions in float32, and what follows it.

    Attributes:
        convolution: by a kernel [out, in / groups, height, width].
        then: what is computed of its result, one after another. What is added, if anything, is the
            call's operand behind the image.
    """

    name = "packed_convolution"
    replaces = OneDNNConvolution.name
    takes_images = True

    convolution: OneDNNConvolution
    then: tuple[PostOp, ...] = ()

    def check(self) -> None:
        """It is in float32, and the result has one clamp or ReLU at most, the last of all."""
        form = self.convolution
        if len(form.image) != 4 or form.kernel_dims != (0, 1) or {*form.dtypes} != {torch.float32}:
            self.refuse(f"the convolution is {form}")
        if any(op.name in LAST for op in self.then[:-1]):
            self.refuse(f"a clamp is followed by others: {self.then}")

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a convolution by oneDNN; None if it has another form."""
        with contextlib.suppress(LoweringError):
            return cls(OneDNNConvolution.of_call(op))
        return None

    def absorb(self, result: Value) -> tuple[Value, Sequence[Value], Self]:
        """The activations and the sum that follow."""
        found = epilogue_of(result)
        added = [] if found.added is None else [found.added]
        return found.result, added, dataclasses.replace(self, then=found.then)

    @staticmethod
    def emit_handle(number: int, operands: Sequence[Value], type_: ir.Type) -> Value:
        """Write the call of a plan."""
        return script_call(number, operands, type_)

    def packed(self, *weights: torch.Tensor) -> "Convolution":
        """The convolution with a weight, and a bias if it has one."""
        return Convolution(self, *weights)


class Convolution:
    """A convolution with a packed weight, and the plan that executes it.

    Attributes:
        plan: it reads and writes what this object holds.
    """

    def __init__(
        self, form: PackedConvolution, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """Pack a weight.

        Args:
            form: what it computes. The plan's operands are the image and what is added, if
                anything; channels are innermost in memory.
            weight: float32 [out, in / groups, height, width].
            bias: float32 [out].

        Raises:
            OneDNNError: oneDNN cannot compute it.
            NativeCodeError: nothing can execute it here.
        """
        call_scripts.register(onednn.threads())
        self._form = form
        self._weights = _Weights(weight, form.convolution.groups)
        self._bias = bias
        self._bias_desc: onednn.Object | None = None
        self._bias_memory: onednn.Object | None = None
        if bias is not None:
            self._bias_desc = onednn.described([len(bias)], [1])
            self._bias_memory = onednn.memory(self._bias_desc, bias.data_ptr())
        self._primitives: dict[Any, _Primitive] = {}
        self._bounds = _bounds(form.then)
        threads = os.cpu_count() or 1
        parts = parts_of(form.convolution, threads)
        with onednn.one_thread():
            self.plan = Plan([self._scripts(part) for part in parts], threads - 1)
        self._weights.give_back()

    def _scripts(self, part: Part) -> tuple[Script, Script | None]:
        """The script of a part, and the one for NaN."""
        then = self._form.then
        if not then or then[-1].name not in LAST:
            return self._script(part, then), None
        script, other = self._script(part, then, checks=True), Script()
        for place in _MADE:
            _destroy(other, place)  # what a script that failed had made
        other = self._script(part, then[:-1], script=other)
        address = slot(self._result_slot(then), part.result_offset)
        count, bounds = number(math.prod(part.result)), number(ctypes.addressof(self._bounds))
        other.call(call_scripts.functions["clamp"], address, count, bounds)
        return script, other

    @staticmethod
    def _result_slot(then: Sequence[PostOp]) -> int:
        return 2 + any(one.name == "add" for one in then)

    def _script(
        self,
        part: Part,
        then: Sequence[PostOp],
        *,
        script: Script | None = None,
        checks: bool = False,
    ) -> Script:
        """The script of a part; with checks it fails where an operation was invalid."""
        library, script = onednn.library(), script or Script()
        primitive = self._primitive(part, then)
        made = {_SOURCE: (primitive.source.handle, slot(1, part.image_offset))}
        result, offset = primitive.result.handle, part.result_offset
        for index, one in enumerate(then, 1):
            if one.name == "add":
                made[_POST_OP * index | _SECOND] = (result, slot(2, offset))
        made[_RESULT] = (result, slot(self._result_slot(then), offset))
        scratchpad, size = onednn.chosen(primitive.desc, onednn.SCRATCHPAD_DESC)
        if size:
            made[onednn.SCRATCHPAD] = (scratchpad.value or 0, number(_ALLOCATED))
        given = {_WEIGHT: number(primitive.weight.handle)}
        if self._bias_memory is not None:
            given[_BIAS] = number(self._bias_memory.handle)
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
            number(primitive.made.handle),
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

    def _primitive(self, part: Part, then: Sequence[PostOp]) -> "_Primitive":
        key = (*part[:4], then)
        if key not in self._primitives:
            self._primitives[key] = _Primitive(
                self._form.convolution, part, then, self._weights, self._bias_desc
            )
        return self._primitives[key]


def _bounds(then: Sequence[PostOp]) -> ctypes.Array:
    """The bounds of the clamp that comes last, if one does, as `float_functions` reads them."""
    clamps = bool(then) and then[-1].name == "clamp"
    low, high = then[-1].numbers if clamps else (0.0, math.inf)
    return (ctypes.c_float * 2)(low, high)


def _destroy(script: Script, place: int) -> None:
    """Destroy memory, and forget it."""
    script.call(onednn.library().dnnl_memory_destroy, slot(place), stored={place: NULL})


class _Primitive:
    """A primitive for a part of a convolution, its descriptions, and its weight in memory."""

    def __init__(
        self,
        form: OneDNNConvolution,
        part: Part,
        then: Sequence[PostOp],
        weights: "_Weights",
        bias: onednn.Object | None,
    ) -> None:
        self.source, self.result = _channels_last(part.image), _channels_last(part.result)
        arguments = (
            onednn.engine(),
            _INFERENCE,
            onednn.DIRECT,
            self.source,
            onednn.described(weights.shape, None),
            bias,
            self.result,
            onednn.numbers(form.stride),
            onednn.numbers([d - 1 for d in form.dilation]),
            onednn.numbers(part.low),
            onednn.numbers(part.high),
            _attributes(then, self.result),
        )
        self.desc = onednn.described_primitive("convolution_forward", arguments, _FASTER)
        self.made = onednn.Object("primitive", "primitive_create", self.desc)
        self.weight = weights.packed(onednn.chosen(self.desc, _WEIGHT_DESC))


class _Weights:
    """A weight in the layouts that primitives want."""

    def __init__(self, weight: torch.Tensor, groups: int) -> None:
        out, *others = weight.shape
        self.shape = [groups, out // groups, *others] if groups > 1 else [out, *others]
        self._plain: torch.Tensor | None = weight.contiguous()
        self._packed: list[tuple[Any, torch.Tensor, onednn.Object]] = []

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
        layout = onednn.described(self.shape, torch.empty(self.shape, device="meta").stride())
        source = onednn.memory(layout, self._plain.data_ptr())
        onednn.reorder(onednn.reordering(layout, desc), source, memory)
        self._packed.append((desc, bytes_, memory))
        return memory

    def give_back(self) -> None:
        """Hold the plain weight no more: nothing else is to be packed."""
        self._plain = None


def _attributes(then: Sequence[PostOp], result: onednn.Object) -> onednn.Object:
    """The attributes of a primitive: what follows, and that its scratchpad comes with calls."""
    operations = onednn.Object("post_ops", "post_ops_create")
    for one in then:
        if one.name == "add":
            onednn.check("post_ops_append_binary", operations, _ADD, result)
        else:
            known = ACTIVATIONS[one.name]
            numbers = map(ctypes.c_float, (*one.numbers, *known.parameters[len(one.numbers) :]))
            onednn.check("post_ops_append_eltwise", operations, known.algorithm, *numbers)
    attributes = onednn.attributes()
    onednn.check("primitive_attr_set_post_ops", attributes, operations)
    return attributes


def _channels_last(shape: Sequence[int]) -> onednn.Object:
    """The description of an image [batch, channel, height, width] with the channels innermost."""
    batch, channels, *spatial = shape
    strides = torch.empty(batch, *spatial, channels, device="meta").stride()
    return onednn.described(shape, (strides[0], strides[-1], *strides[1:-1]))
