"""Convolutions by oneDNN with weights in its own layout, and plans that execute them.

A convolution is made once for a form, a weight and a bias: oneDNN says which layout it wants, and
the weight is brought into it. What follows (bias, activation, sum) is computed on the way, by
oneDNN's post-ops, and the result is written into the program's memory.

oneDNN's clamp, of which ReLU is one, makes a number of NaN, where torch's is NaN. It does so by
operations that the processor notes as invalid. So each part of a convolution with a clamp has a
second script, which computes it without and clamps the result as torch does.
"""

import ctypes
import json
import math
import os
from collections.abc import Sequence
from typing import Any

import torch

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
from xla_dynamo.runtime.cpu.convolution_parts import Part, parts_of

_ALIGNMENT = 64  # XLA:CPU copies what is not aligned so
# Numbers of oneapi/dnnl/dnnl_types.h: what memory is to a primitive, and what may be asked of one.
_SOURCE, _RESULT, _WEIGHT, _BIAS = 1, 17, 33, 41
_POST_OP, _SECOND = 32768, 2  # what is the second operand of a post-op
_WEIGHT_DESC, _INFERENCE, _ADD = 131, 96, 0x1FFF0
_ALLOCATED = -1  # an address: oneDNN has memory of its own
# Activations: their number, and their two parameters where a form has none.
_ACTIVATIONS: dict[str, tuple[int, float, float]] = {
    "clamp": (0x2E, 0.0, 0.0),
    "gelu_erf": (0x31, 0.0, 0.0),
    "gelu_tanh": (0x2B, 0.0, 0.0),
    "hardswish": (0x34, 1 / 6, 0.5),
    "leaky_relu": (0x20, 0.0, 0.0),
    "relu": (0x20, 0.0, 0.0),
    "swish": (0x2C, 1.0, 0.0),
}
# Kernels that others of oneDNN's beat: on AVX2 by 1.1 to 3.5 times, most where there are many
# channels, or each is convolved by itself.
_FASTER = {"brgconv_1x1:avx2": "jit_1x1:avx2", "brdgmm_dw:avx2": "jit_dw:avx2"}
# Slots of what a script makes: at most an image, a sum's operand, a result and a scratchpad.
_MADE = range(20, 24)


def can_pack() -> bool:
    """Whether programs for the CPU can execute primitives of oneDNN, once `prepare` was called."""
    return onednn.library() is not None and call_scripts.can_run()


def prepare() -> None:
    """Register what executes primitives, unless that was done.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    call_scripts.register(onednn.threads())


class Convolution:
    """A convolution with a packed weight, and the plan that executes it.

    Attributes:
        plan: it reads and writes what this object holds.
    """

    def __init__(self, form: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Pack a weight.

        Args:
            form: JSON (see `lowerings.passes.call_packed`): the shapes `image`, `kernel` and
                `result` of [batch, channel, height, width], the padding before (`low`) and behind
                (`high`), `stride` and `dilation` of each spatial dimension, `groups`, and `then`:
                what follows. The plan's operands are the image and what is added, if anything;
                channels are innermost in memory.
            weight: float32 [out, in / groups, height, width].
            bias: float32 [out].

        Raises:
            OneDNNError: oneDNN cannot compute it.
            NativeCodeError: nothing can execute it here.
        """
        prepare()
        self._form = json.loads(form)
        self._weights = _Weights(weight, self._form["groups"])
        self._bias = bias
        self._bias_desc: onednn.Object | None = None
        self._bias_memory: onednn.Object | None = None
        if bias is not None:
            self._bias_desc = onednn.described([len(bias)], [1])
            self._bias_memory = onednn.memory(self._bias_desc, bias.data_ptr())
        self._primitives: dict[Any, _Primitive] = {}
        self._bounds = _bounds(self._form["then"])
        threads = os.cpu_count() or 1
        parts = parts_of(self._form, threads)
        with onednn.one_thread():
            self.plan = Plan([self._scripts(part) for part in parts], threads - 1)
        self._weights.give_back()

    def _scripts(self, part: Part) -> tuple[Script, Script | None]:
        """The script of a part, and the one for NaN."""
        then = self._form["then"]
        if not then or then[-1][0] not in ("clamp", "relu"):
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
    def _result_slot(then: Sequence[Any]) -> int:
        return 2 + any(one[0] == "add" for one in then)

    def _script(
        self,
        part: Part,
        then: Sequence[Any],
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
            if one[0] == "add":
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

    def _primitive(self, part: Part, then: Sequence[Any]) -> "_Primitive":
        key = (*part[:4], json.dumps(then))
        if key not in self._primitives:
            self._primitives[key] = _Primitive(
                self._form, part, then, self._weights, self._bias_desc
            )
        return self._primitives[key]


def _bounds(then: Sequence[Any]) -> ctypes.Array:
    """The bounds of the clamp that comes last, if one does, as `float_functions` reads them."""
    clamps = bool(then) and then[-1][0] == "clamp"
    low, high = (then[-1][1], then[-1][2]) if clamps else (0.0, math.inf)
    return (ctypes.c_float * 2)(low, high)


def _destroy(script: Script, place: int) -> None:
    """Destroy memory, and forget it."""
    script.call(onednn.library().dnnl_memory_destroy, slot(place), stored={place: NULL})


class _Primitive:
    """A primitive for a part of a convolution, its descriptions, and its weight in memory."""

    def __init__(
        self,
        form: dict[str, Any],
        part: Part,
        then: Sequence[Any],
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
            onednn.numbers(form["stride"]),
            onednn.numbers([d - 1 for d in form["dilation"]]),
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


def _attributes(then: Sequence[Any], result: onednn.Object) -> onednn.Object:
    """The attributes of a primitive: what follows, and that its scratchpad comes with calls."""
    operations = onednn.Object("post_ops", "post_ops_create")
    for name, *parameters in then:
        if name == "add":
            onednn.check("post_ops_append_binary", operations, _ADD, result)
        else:
            kind, *known = _ACTIVATIONS[name]
            alpha, beta = parameters + known[len(parameters) :]
            numbers = ctypes.c_float(alpha), ctypes.c_float(beta)
            onednn.check("post_ops_append_eltwise", operations, kind, *numbers)
    attributes = onednn.attributes()
    onednn.check("primitive_attr_set_post_ops", attributes, operations)
    return attributes


def _channels_last(shape: Sequence[int]) -> onednn.Object:
    """The description of an image [batch, channel, height, width] with the channels innermost."""
    batch, channels, *spatial = shape
    strides = torch.empty(batch, *spatial, channels, device="meta").stride()
    return onednn.described(shape, (strides[0], strides[-1], *strides[1:-1]))


def handles_of(convolutions: Sequence[Convolution]) -> torch.Tensor:
    """The addresses of the plans of convolutions, int64, one for each.

    The result's memory holds the convolutions, so they live as long as a buffer over it.
    """
    holder = _Holder(8 * len(convolutions) + _ALIGNMENT)
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(holder)) % _ALIGNMENT
    holder.held = tuple(convolutions)
    memory = torch.frombuffer(holder, dtype=torch.int64, count=len(convolutions), offset=offset)
    addresses = [one.plan.address for one in convolutions]
    memory.copy_(torch.tensor(addresses, device="cpu"))
    return memory


class _Holder(bytearray):
    """The memory of addresses, which holds what they are addresses of."""

    held: Sequence[Convolution] = ()
