"""The layout that oneDNN wants the weight of a convolution in, and plans that bring it there.

Where a weight is not frozen, a program brings it into that layout at each call: that takes far less
time than the convolution, a tenth in ResNet-50. The weight may come in float32 where the
convolution is in bfloat16: oneDNN rounds it on the way, as a cast does.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from xla_dynamo.kernels.convolution_parts import Part, parts_of
from xla_dynamo.kernels.library_calls import ScriptKernel
from xla_dynamo.kernels.onednn_convolution import OneDNNConvolution
from xla_dynamo.kernels.onednn_plans import RESULT, SOURCE, Execution, attributes_of
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.passes.epilogues import PostOp
from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.call_scripts import Plan, Script, slot
from xla_dynamo.runtime.cpu.shares import ranges, threads

# What the layout of a weight, and inference, are to oneDNN (oneapi/dnnl/dnnl_types.h).
_WEIGHT_DESC, _INFERENCE = 131, 96
# Kernels that others of oneDNN's beat: on AVX2 by 1.1 to 3.5 times, most where there are many
# channels, or each is convolved by itself.
_FASTER = {"brgconv_1x1:avx2": "jit_1x1:avx2", "brdgmm_dw:avx2": "jit_dw:avx2"}
_AMX = "avx512_core_amx"  # how names of kernels end that use it
# Elements below which to call other threads costs more than they do, and of how many output
# channels the parts of a weight are multiples: no layout has larger blocks.
_FEWEST_DIVIDED, _BLOCK = 1 << 16, 64


class Layout(NamedTuple):
    """A layout in memory.

    Attributes:
        desc: its description.
        bytes: how many it takes.
    """

    desc: onednn.Object
    bytes: int


def in_groups(shape: Sequence[int], groups: int) -> list[int]:
    """The shape of a weight to oneDNN: groups have a dimension of their own."""
    out, *others = shape
    return [groups, out // groups, *others] if groups > 1 else [out, *others]


def channels_last(shape: Sequence[int], dtype: torch.dtype) -> onednn.Object:
    """The description of an image [batch, channel, height, width] with the channels innermost."""
    batch, channels, *spatial = shape
    strides = torch.empty(batch, *spatial, channels, device="meta").stride()
    return onednn.described(shape, (strides[0], strides[-1], *strides[1:-1]), dtype)


def channel_vector(channels: int) -> onednn.Object:
    """The description of a number for each channel of an image, in float32."""
    return onednn.described([1, channels, 1, 1], [channels, 1, 1, 1], torch.float32)


def described(
    form: OneDNNConvolution, part: Part, then: Sequence[PostOp], weight: Any, bias: Any
) -> onednn.Object:
    """The descriptor of the primitive for a part of a convolution.

    Args:
        form: the convolution.
        part: the part.
        then: what follows.
        weight: the description of the weight.
        bias: that of the bias, or None.

    Raises:
        OneDNNError: oneDNN cannot compute it.
    """
    dtype = form.dtypes[0]
    result, vector = channels_last(part.result, dtype), channel_vector(part.result[1])
    operands = {"scale": vector, "shift": vector, "add": result}
    arguments = (
        onednn.engine(),
        _INFERENCE,
        onednn.DIRECT,
        channels_last(part.image, dtype),
        weight,
        bias,
        result,
        onednn.numbers(form.stride),
        onednn.numbers([d - 1 for d in form.dilation]),
        onednn.numbers(part.low),
        onednn.numbers(part.high),
        attributes_of(then, operands),
    )
    wrong = _AMX if _is_wrong_by_amx(form) else ""
    return onednn.described_primitive("convolution_forward", arguments, _FASTER, wrong)


def _is_wrong_by_amx(form: OneDNNConvolution) -> bool:
    """Whether oneDNN (3.2) computes something else with AMX: it reads the wrong columns.

    So it does where it lays columns and channels of the window in a row, and steps by two columns.
    """
    even = form.kernel[3] % 2 == form.stride[1] % 2 == 0
    return form.dtypes[0] is not torch.float32 and even and form.kernel[1] % 32 != 0


def weight_of(desc: onednn.Object) -> tuple[Any, int]:
    """The description of the weight that a primitive wants, and its bytes."""
    return onednn.chosen(desc, _WEIGHT_DESC)


@functools.lru_cache(1024)
def layout_of(form: OneDNNConvolution) -> Layout:
    """The layout that a convolution's weight has for all of its parts.

    Raises:
        OneDNNError: oneDNN cannot compute the convolution.
    """
    dtype = form.dtypes[0]
    part = parts_of(form, threads())[0]
    with onednn.one_thread():
        any_ = onednn.described(in_groups(form.kernel, form.groups), None, dtype)
        bias = onednn.described([form.kernel[0]], [1], dtype) if form.bias else None
        desc = described(form, part, (), any_, bias)
    weight, size = weight_of(desc)
    return Layout(onednn.Object("memory_desc", "memory_desc_clone", weight), size)


@register
@dataclasses.dataclass(frozen=True)
class WeightLayout(ScriptKernel):
    """The weight of a convolution as bytes in the layout that oneDNN wants it in.

    Attributes:
        convolution: the convolution, whose dtype the bytes are of.
        source: the dtype of the weight that comes, [out, in / groups, height, width].
    """

    name = "weight_layout"
    replaces = ""  # calls of it are written for those of another kernel

    convolution: OneDNNConvolution
    source: torch.dtype

    def packed(self, *weights: torch.Tensor) -> "Reorder":
        """The plan; nothing is held."""
        return Reorder(self)


class Reorder:
    """The plan that brings a weight into a layout.

    Attributes:
        plan: it reads and writes what comes with a call.
    """

    def __init__(self, form: WeightLayout) -> None:
        """Take what it brings where.

        Raises:
            OneDNNError: oneDNN cannot compute it.
            NativeCodeError: nothing can execute it here.
        """
        call_scripts.register(onednn.threads())
        one = form.convolution
        self._layout = layout_of(one).desc
        self._shape, self._dtype = in_groups(one.kernel, one.groups), form.source
        self._held: list[Execution] = []
        with onednn.one_thread():
            try:
                scripts = [self._script(*part) for part in self._parts()]
            except onednn.OneDNNError:  # some layout cannot be divided so
                scripts = [self._script(0, self._shape[0])]
        self.plan = Plan([(script, None) for script in scripts], threads() - 1)

    def _parts(self) -> list[tuple[int, int]]:
        """Where each part starts, and how many it has of the first dimension."""
        first = self._shape[0]
        if math.prod(self._shape) < _FEWEST_DIVIDED:
            return [(0, first)]
        blocks = -(-first // _BLOCK)
        parts = [(_BLOCK * r.start, _BLOCK * r.stop) for r in ranges(blocks, threads())]
        return [(start, min(stop, first) - start) for start, stop in parts]

    def _script(self, start: int, count: int) -> Script:
        shape = [count, *self._shape[1:]]
        strides = torch.empty(shape, device="meta").stride()
        source = onednn.described(shape, strides, self._dtype)
        target = self._layout
        if count < self._shape[0]:
            starts = [start] + [0] * (len(shape) - 1)
            target = onednn.part_of(self._layout, shape, starts)
        desc = onednn.described_reorder(source, target, onednn.attributes())
        primitive = onednn.Object("primitive", "primitive_create", desc)
        offset = start * strides[0] * self._dtype.itemsize
        read = {SOURCE: (source, slot(1, offset)), RESULT: (target, slot(2))}
        made = Execution(desc, primitive, {}, read)
        self._held.append(made)
        return made.write(Script())
