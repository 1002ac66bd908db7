"""Convolutions by oneDNN with weights in its own layout, and plans that execute them.

A convolution is made once for a form, a weight and a bias: oneDNN says which layout it wants, and
the weight is brought into it. What follows (bias, activation, sum) is computed on the way, by
oneDNN's post-ops, and the result is written into the program's memory.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.convolution_parts import Part, parts_of
from xla_dynamo.kernels.library_calls import ScriptKernel
from xla_dynamo.kernels.onednn_convolution import OneDNNConvolution
from xla_dynamo.kernels.onednn_plans import (
    BIAS,
    RESULT,
    SOURCE,
    WEIGHT,
    Execution,
    Weights,
    attributes_of,
    bounds_of,
    scripts_of,
    second_operands,
)
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.passes.epilogues import LAST, PostOp, epilogue_of
from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.call_scripts import Argument, Plan, Script, slot

# What the layout of a weight, and inference, are to oneDNN (oneapi/dnnl/dnnl_types.h).
_WEIGHT_DESC, _INFERENCE = 131, 96
# Kernels that others of oneDNN's beat: on AVX2 by 1.1 to 3.5 times, most where there are many
# channels, or each is convolved by itself.
_AMX = "avx512_core_amx"  # how names of kernels end that use it
_FASTER = {"brgconv_1x1:avx2": "jit_1x1:avx2", "brdgmm_dw:avx2": "jit_dw:avx2"}


@register
@dataclasses.dataclass(frozen=True)
class PackedConvolution(ScriptKernel):
    """A convolution of images of two dimensions in one dtype, and what follows it.

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
        """Its result has its image's dtype, and one clamp or ReLU at most, the last of all."""
        form = self.convolution
        if len(form.image) != 4 or form.kernel_dims != (0, 1) or len({*form.dtypes}) != 1:
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
            weight: [out, in / groups, height, width], in the image's dtype.
            bias: [out], likewise.

        Raises:
            OneDNNError: oneDNN cannot compute it.
            NativeCodeError: nothing can execute it here.
        """
        call_scripts.register(onednn.threads())
        self._form = form
        self._weights = _weights(weight, form.convolution.groups)
        self._bias = bias
        self._bias_desc: onednn.Object | None = None
        self._bias_memory: onednn.Object | None = None
        if bias is not None:
            self._bias_desc = onednn.described([len(bias)], [1], bias.dtype)
            self._bias_memory = onednn.memory(self._bias_desc, bias.data_ptr())
        self._primitives: dict[Any, _Primitive] = {}
        self._bounds = bounds_of(form.then)
        threads = os.cpu_count() or 1
        parts = parts_of(form.convolution, threads)
        with onednn.one_thread():
            self.plan = Plan([self._scripts(part) for part in parts], threads - 1)
        self._weights.give_back()

    def _scripts(self, part: Part) -> tuple[Script, Script | None]:
        """The script of a part, and the one for NaN."""
        then = self._form.then
        address = slot(2 + len(second_operands(then)), part.result_offset)
        elements = math.prod(part.result)

        def execution(then: Sequence[PostOp]) -> Execution:
            return self._execution(part, then, address)

        memory = address, elements, self._form.convolution.dtypes[1]
        return scripts_of(execution, then, memory, self._bounds)

    def _execution(self, part: Part, then: Sequence[PostOp], address: Argument) -> Execution:
        primitive = self._primitive(part, then)
        read = {SOURCE: (primitive.source, slot(1, part.image_offset))}
        for added in second_operands(then):
            read[added] = (primitive.result, slot(2, part.result_offset))
        read[RESULT] = (primitive.result, address)
        held = {WEIGHT: primitive.weight}
        if self._bias_memory is not None:
            held[BIAS] = self._bias_memory
        return Execution(primitive.desc, primitive.made, held, read)

    def _primitive(self, part: Part, then: Sequence[PostOp]) -> "_Primitive":
        key = (*part[:4], then)
        if key not in self._primitives:
            self._primitives[key] = _Primitive(
                self._form.convolution, part, then, self._weights, self._bias_desc
            )
        return self._primitives[key]


class _Primitive:
    """A primitive for a part of a convolution, its descriptions, and its weight in memory."""

    def __init__(
        self,
        form: OneDNNConvolution,
        part: Part,
        then: Sequence[PostOp],
        weights: Weights,
        bias: onednn.Object | None,
    ) -> None:
        dtype = form.dtypes[0]
        self.source, self.result = (_channels_last(s, dtype) for s in (part.image, part.result))
        arguments = (
            onednn.engine(),
            _INFERENCE,
            onednn.DIRECT,
            self.source,
            onednn.described(weights.shape, None, dtype),
            bias,
            self.result,
            onednn.numbers(form.stride),
            onednn.numbers([d - 1 for d in form.dilation]),
            onednn.numbers(part.low),
            onednn.numbers(part.high),
            attributes_of(then, self.result),
        )
        wrong = _AMX if _is_wrong_by_amx(form) else ""
        self.desc = onednn.described_primitive("convolution_forward", arguments, _FASTER, wrong)
        self.made = onednn.Object("primitive", "primitive_create", self.desc)
        self.weight = weights.packed(onednn.chosen(self.desc, _WEIGHT_DESC))


def _is_wrong_by_amx(form: OneDNNConvolution) -> bool:
    """Whether oneDNN (3.2) computes something else with AMX: it reads the wrong columns.

    So it does where it lays columns and channels of the window in a row, and steps by two columns.
    """
    even = form.kernel[3] % 2 == form.stride[1] % 2 == 0
    return form.dtypes[0] is not torch.float32 and even and form.kernel[1] % 32 != 0


def _weights(weight: torch.Tensor, groups: int) -> Weights:
    """A weight, whose groups have a dimension of their own for oneDNN."""
    out, *others = weight.shape
    shape = [groups, out // groups, *others] if groups > 1 else [out, *others]
    strides = torch.empty(shape, device="meta").stride()
    return Weights(shape, strides, weight.contiguous())


def _channels_last(shape: Sequence[int], dtype: torch.dtype) -> onednn.Object:
    """The description of an image [batch, channel, height, width] with the channels innermost."""
    batch, channels, *spatial = shape
    strides = torch.empty(batch, *spatial, channels, device="meta").stride()
    return onednn.described(shape, (strides[0], strides[-1], *strides[1:-1]), dtype)
