"""Convolutions by oneDNN with weights in its own layout, and plans that execute them.

A convolution is made once for a form, a weight and a bias: oneDNN says which layout it wants, and
the weight is brought into it. What follows (bias, activation, sum) is computed on the way, by
oneDNN's post-ops, and the result is written into the program's memory.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.convolution_parts import Part, parts_of
from xla_dynamo.kernels.convolution_weights import (
    WeightLayout,
    channel_vector,
    channels_last,
    described,
    in_groups,
    layout_of,
    weight_of,
)
from xla_dynamo.kernels.library_calls import ScriptKernel
from xla_dynamo.kernels.onednn_convolution import OneDNNConvolution
from xla_dynamo.kernels.onednn_plans import (
    BIAS,
    RESULT,
    SOURCE,
    WEIGHT,
    Execution,
    Weights,
    bounds_of,
    scripts_of,
    second_operands,
)
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.values import Value, defining_name, dtype_of
from xla_dynamo.lowerings.kernels import PackedKernel, register
from xla_dynamo.lowerings.passes.epilogues import CHANNELWISE, LAST, PostOp, epilogue_of
from xla_dynamo.lowerings.target import ONEDNN_PLANS
from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.call_scripts import Argument, Plan, Script, slot
from xla_dynamo.runtime.cpu.shares import threads

# From which dtype a weight is rounded to which while it is brought into a layout.
_ROUNDED = {(torch.float32, torch.bfloat16)}


@register
@dataclasses.dataclass(frozen=True)
class PackedConvolution(ScriptKernel):
    """A convolution of images of two dimensions in one dtype, and what follows it.

    Attributes:
        convolution: by a kernel [out, in / groups, height, width].
        is_held: whether the plan holds the weight, and the bias if there is one. If not, both come
            with a call, behind the image; the weight as `WeightLayout` makes it.
        then: what is computed of its result, one after another. Their operands are the call's last
            ones, in their order.
    """

    name = "packed_convolution"
    replaces = OneDNNConvolution.name
    takes_images = True
    reads_plain = ONEDNN_PLANS

    convolution: OneDNNConvolution
    then: tuple[PostOp, ...] = ()
    is_held: bool = True

    def check(self) -> None:
        """Its result has its image's dtype, one clamp or ReLU at most, the last of all, one sum."""
        form = self.convolution
        if len(form.image) != 4 or form.kernel_dims != (0, 1) or len({*form.dtypes}) != 1:
            self.refuse(f"the convolution is {form}")
        if any(op.name in LAST for op in self.then[:-1]):
            self.refuse(f"a clamp is followed by others: {self.then}")

    @property
    def plans(self) -> bool:
        """Whether oneDNN's own library can compute it, and is there."""
        if onednn.library() is None:
            return False
        with contextlib.suppress(onednn.OneDNNError):
            return layout_of(self.convolution).bytes > 0
        return False

    def calls_of(self, op: ir.Operation) -> Sequence[tuple[ir.Operation, PackedKernel]]:
        """A call that brings the weight into the layout that oneDNN wants, and the convolution.

        A cast of the weight is part of the first one.
        """
        weight, given = op.operands[1], self.convolution.dtypes[0]
        if defining_name(weight) == "stablehlo.convert":
            source = weight.owner.operands[0]
            weight = source if (dtype_of(source), given) in _ROUNDED else weight
        with ir.InsertionPoint(op), op.location:
            type_ = tensor_type([layout_of(self.convolution).bytes], torch.uint8)
            brought = hlo.CustomCallOp([type_], [weight], WeightLayout.name)
        op.operands[1] = brought.results[0]
        layout = WeightLayout(self.convolution, dtype_of(weight))
        return [(brought.operation, layout), (op, dataclasses.replace(self, is_held=False))]

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a convolution by oneDNN; None if it has another form."""
        with contextlib.suppress(LoweringError):
            return cls(OneDNNConvolution.of_call(op))
        return None

    def absorb(self, result: Value) -> tuple[Value, Sequence[Value], Self]:
        """What follows: a factor and a term for each channel, activations and a sum."""
        found = epilogue_of(result, has_channels=True)
        return found.result, found.operands, dataclasses.replace(self, then=found.then)

    def packed(self, *weights: torch.Tensor) -> "Convolution":
        """The convolution with a weight, and a bias if it has one; without, both come."""
        return Convolution(self, *weights)


class Convolution:
    """A convolution, with a packed weight or without, and the plan that executes it.

    Attributes:
        plan: it reads and writes what this object holds.
    """

    def __init__(
        self,
        form: PackedConvolution,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> None:
        """Pack a weight, if the plan is to hold one.

        Args:
            form: what it computes. The plan's operands are the image, the weight and the bias if
                they come with a call, and what is added, if anything; channels are innermost in
                memory.
            weight: [out, in / groups, height, width], in the image's dtype.
            bias: [out], likewise.

        Raises:
            OneDNNError: oneDNN cannot compute it.
            NativeCodeError: nothing can execute it here.
        """
        call_scripts.register(onednn.threads())
        self._form, one = form, form.convolution
        self._weights: Weights | None = None
        if weight is not None:
            shape = in_groups(weight.shape, one.groups)
            strides = torch.empty(shape, device="meta").stride()
            self._weights = Weights(shape, strides, weight.contiguous())
        self._bias, self._bias_desc = bias, None
        if one.bias:
            self._bias_desc = onednn.described([one.kernel[0]], [1], one.dtypes[0])
        self._primitives: dict[Any, tuple[onednn.Object, onednn.Object]] = {}
        self._held: list[Execution] = []
        self._bounds = bounds_of(form.then)
        parts = parts_of(one, threads())
        with onednn.one_thread():
            self.plan = Plan([self._scripts(part) for part in parts], threads() - 1)
        if self._weights is not None:
            self._weights.give_back()

    @property
    def _operands(self) -> int:
        """How many operands there are, the handles included, before what is added."""
        return 2 if self._weights is not None else 3 + self._form.convolution.bias

    def _scripts(self, part: Part) -> tuple[Script, Script | None]:
        """The script of a part, and the one for NaN."""
        then = self._form.then
        address = slot(self._operands + len(second_operands(then)), part.result_offset)
        elements = math.prod(part.result)

        def execution(then: Sequence[PostOp]) -> Execution:
            return self._execution(part, then, address)

        memory = address, elements, self._form.convolution.dtypes[1]
        return scripts_of(execution, then, memory, self._bounds)

    def _execution(self, part: Part, then: Sequence[PostOp], address: Argument) -> Execution:
        form, weights = self._form.convolution, self._weights
        desc, primitive = self._primitive(part, then)
        image, result = (channels_last(s, form.dtypes[0]) for s in (part.image, part.result))
        read = {SOURCE: (image, slot(1, part.image_offset)), RESULT: (result, address)}
        for place, (operand, name) in enumerate(second_operands(then), self._operands):
            if name in CHANNELWISE:
                read[operand] = (channel_vector(part.result[1]), slot(place))
            else:
                read[operand] = (result, slot(place, part.result_offset))
        held: dict[int, onednn.Object] = {}
        if weights is None:
            read[WEIGHT] = (layout_of(form).desc, slot(2))
            if self._bias_desc is not None:
                read[BIAS] = (self._bias_desc, slot(3))
        else:
            held[WEIGHT] = weights.packed(weight_of(desc))
            if self._bias is not None:
                held[BIAS] = onednn.memory(self._bias_desc, self._bias.data_ptr())
        made = Execution(desc, primitive, held, read)
        self._held.append(made)
        return made

    def _primitive(self, part: Part, then: Sequence[PostOp]) -> tuple[onednn.Object, onednn.Object]:
        """The descriptor and the primitive of a part; parts of one form share them."""
        key = (*part[:4], tuple(then))
        if key not in self._primitives:
            form = self._form.convolution
            if self._weights is None:
                weight = layout_of(form).desc
            else:
                weight = onednn.described(self._weights.shape, None, form.dtypes[0])
            desc = described(form, part, then, weight, self._bias_desc)
            self._primitives[key] = desc, onednn.Object("primitive", "primitive_create", desc)
        return self._primitives[key]
