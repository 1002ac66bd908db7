"""The gradient of a convolution in its kernel, which oneDNN has and XLA does not call.

oneDNN's own library computes it, where it is installed and has a kernel, and else torch's.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch

from xla_dynamo.kernels.library_calls import PythonKernel, python_kernel
from xla_dynamo.lowerings.builders.build import reduce
from xla_dynamo.lowerings.builders.convolution_window import Window
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.strides import channels_last
from xla_dynamo.lowerings.builders.values import Value, dtype_of, numel_of, shape_of
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN, ONEDNN_BFLOAT16, TORCH
from xla_dynamo.runtime.cpu import onednn
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.torch_shares import alone, slices, tensor_at

# By `python -m bench run --suite training --mode training`: multiplications below which a call
# costs more than it gains.
FEWEST_IN_WEIGHT_GRADIENT = 1 << 20
# Elements of a weight for one of the convolution's result, above which XLA's own weight gradient
# costs less: oneDNN puts the weight into blocks and back.
LARGEST_WEIGHT = 8
# Parts of the batch whose weight gradients are computed side by side and summed, if together they
# are no larger than the convolution's result.
MOST_PARTS = 8

# Numbers of oneapi/dnnl/dnnl_types.h: what memory is to a primitive, and what may be asked of one.
_IMAGE, _GRADIENT, _WEIGHT = 1, 145, 161
_IMAGE_DESC, _WEIGHT_DESC, _GRADIENT_DESC, _TRAINING = 129, 132, 134, 64
# Beginnings of the names of kernels that are slow: for what the others do not take.
_SLOW = ("ref", "gemm")

aten = torch.ops.aten


class OneDNNGradient:
    """oneDNN's kernel for tensors of one shape and layout; threads may share it.

    With the channels innermost, as programs have images, oneDNN's kernels for AVX2 take up to twice
    as long as with the channels in blocks. So the image and the gradient are brought into blocks
    first, which costs a tenth of what it gains. torch's operator does so only for row-major ones.

    Args:
        image: float32 [batch, in, *spatial], of any strides.
        grad: float32 [batch, out, *spatial], likewise.
        weight: float32 [out, in, *window], likewise.
        window: strides, paddings and dilations, one of each for a spatial dimension. The padding
            is as low as it is high, or what the shapes leave.

    Raises:
        OneDNNError: oneDNN has no kernel for it, or none that is fast.
    """

    def __init__(
        self,
        image: torch.Tensor,
        grad: torch.Tensor,
        weight: torch.Tensor,
        window: Sequence[Sequence[int]],
    ) -> None:
        """Ask oneDNN for the kernel."""
        with onednn.one_thread():
            desc = _described(image, grad, weight, window)
            if onednn.kernel_of(desc).startswith(_SLOW):
                raise onednn.OneDNNError(f"oneDNN has only {onednn.kernel_of(desc)}")
            self._primitive = onednn.Object("primitive", "primitive_create", desc)
            self._desc = desc  # owns the descriptions of memory below
            self._scratchpad = onednn.chosen(desc, onednn.SCRATCHPAD_DESC)
            self._sides = [
                _Side(tensor, *onednn.chosen(desc, query), into)
                for tensor, query, into in (
                    (image, _IMAGE_DESC, True),
                    (grad, _GRADIENT_DESC, True),
                    (weight, _WEIGHT_DESC, False),
                )
            ]

    def __call__(self, image: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor) -> None:
        """Write the gradient into `weight`, in this thread alone."""
        desc, size = self._scratchpad
        scratch = onednn.empty(max(size, 1))
        with onednn.one_thread():
            # `held` is the memory of what is read and written.
            memories, held = zip(
                *(s.at(t) for s, t in zip(self._sides, (image, grad, weight), strict=True)),
                strict=True,
            )
            given = dict(zip((_IMAGE, _GRADIENT, _WEIGHT), memories, strict=True))
            given[onednn.SCRATCHPAD] = onednn.memory(desc, scratch.data_ptr())
            onednn.execute(self._primitive, given)
            self._sides[-1].write_back(memories[-1], weight)
        del held


class _Side:
    """A tensor in its own layout and in that of a kernel."""

    def __init__(self, tensor: torch.Tensor, chosen: object, size: int, into: bool) -> None:
        self._own = onednn.described(tensor.shape, tensor.stride())
        self._chosen, self._size, self._into = chosen, size, into
        self._reorder = None
        if not onednn.are_equal(self._own, chosen):
            ends = (self._own, chosen) if into else (chosen, self._own)
            self._reorder = onednn.reordering(*ends)

    def at(self, tensor: torch.Tensor) -> tuple[onednn.Object, torch.Tensor]:
        """The tensor in the kernel's layout, or where that is to be written; and what holds it."""
        if self._reorder is None:
            return onednn.memory(self._own, tensor.data_ptr()), tensor
        held = onednn.empty(self._size)
        blocks = onednn.memory(self._chosen, held.data_ptr())
        if self._into:
            own = onednn.memory(self._own, tensor.data_ptr())
            onednn.reorder(self._reorder, own, blocks)
        return blocks, held

    def write_back(self, blocks: onednn.Object, tensor: torch.Tensor) -> None:
        """Bring what the kernel has written into the tensor's own layout."""
        if self._reorder is not None:
            own = onednn.memory(self._own, tensor.data_ptr())
            onednn.reorder(self._reorder, blocks, own)


def _described(
    image: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    window: Sequence[Sequence[int]],
) -> onednn.Object:
    """The description of the primitive, in layouts of oneDNN's choice."""
    strides, low, dilations = window
    sizes = zip(image.shape[2:], grad.shape[2:], weight.shape[2:], *window, strict=True)
    high = [(o - 1) * s + (k - 1) * d + 1 - n - p for n, o, k, s, p, d in sizes]
    attributes = onednn.attributes()
    tensors = [onednn.described(t.shape, None) for t in (image, weight, grad)]
    common = (
        onednn.DIRECT,
        *tensors[:2],
        None,
        tensors[2],
        onednn.numbers(strides),
        onednn.numbers([d - 1 for d in dilations]),
        onednn.numbers(low),
        onednn.numbers(high),
    )
    engine, kind = onednn.engine(), "primitive_desc"
    forward = onednn.Object(
        kind, "convolution_forward_primitive_desc_create", engine, _TRAINING, *common, attributes
    )
    return onednn.Object(
        kind,
        "convolution_backward_weights_primitive_desc_create",
        engine,
        *common,
        forward,
        attributes,
    )


@python_kernel
@dataclasses.dataclass(frozen=True)
class WeightGradient(PythonKernel):
    """The gradient of a convolution's kernel [out, in / groups, *window].

    Operands are the image and the gradient of the result, both with the channels innermost.

    Attributes:
        parts: of the batch: if there are several, each has its own result, of
            [parts, out, in / groups, *window] in all, and they are to be summed.
        image: the shape of the image, [batch, in, *spatial].
        grad: that of the gradient, [batch, out, *spatial].
        kernel: that of the result.
        stride: of the window, one number for each spatial dimension.
        padding: likewise; it is as low as it is high.
        dilation: likewise.
        groups: of channels.
        dtype: of all of them.
    """

    name = "weight_gradient"
    takes_images = True
    libraries: ClassVar = {
        torch.float32: frozenset({TORCH, ONEDNN}),
        torch.bfloat16: frozenset({TORCH, ONEDNN_BFLOAT16}),
    }

    parts: int
    image: tuple[int, ...]
    grad: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    _by_onednn: dict[tuple[int, int], OneDNNGradient | None] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def check(self) -> None:
        """Shapes and window have the same rank, and parts and groups divide what they do."""
        rank, window = len(self.kernel), (self.stride, self.padding, self.dilation)
        ranks = {len(self.image), len(self.grad), *(len(numbers) + 2 for numbers in window)}
        if ranks != {rank}:
            self.refuse(f"the kernel has {rank} dimensions, and others have {ranks}")
        if not 0 < self.parts <= self.image[0] or self.image[1] != self.kernel[1] * self.groups:
            self.refuse(f"{self.parts} parts and {self.groups} groups of images {self.image}")

    @classmethod
    def accept(
        cls,
        ctx: Context,
        x: Value,
        grad: Value,
        *,
        shape: Sequence[int],
        window: Window,
        groups: int,
    ) -> Self | None:
        sizes, dtype, elements = (
            [*shape, *shape_of(x), *shape_of(grad)],
            dtype_of(x),
            numel_of(grad),
        )
        if 0 in sizes or not 3 <= len(shape) <= 5:
            return None
        spatial = zip(shape_of(x)[2:], shape[2:], *window[:3], strict=True)
        out = [(n + low + high - (k - 1) * d - 1) // s + 1 for n, k, s, (low, high), d in spatial]
        if tuple(out) != tuple(shape_of(grad)[2:]):
            return None  # of a transposed convolution whose output_padding made room for more
        ends = zip(shape_of(x)[2:], out, window.stride, strict=True)
        if dtype is torch.bfloat16 and any(s > 1 and 1 in (n, o) for n, o, s in ends):
            return None  # oneDNN (3.x) reads beyond such an image
        if math.prod(shape) > LARGEST_WEIGHT * elements:
            return None
        if elements * math.prod(shape[1:]) < FEWEST_IN_WEIGHT_GRADIENT:
            return None
        most = MOST_PARTS if dtype is torch.float32 else 1  # each result is rounded
        return cls(
            parts=max(min(shape_of(x)[0], elements // math.prod(shape), most), 1),
            image=shape_of(x),
            grad=shape_of(grad),
            kernel=tuple(shape),
            stride=tuple(window.stride),
            padding=tuple(low for low, _ in window.padding),
            dilation=tuple(window.dilation),
            groups=groups,
            dtype=dtype,
        )

    def emit(self, ctx: Context, *operands: Any) -> Value:
        shape = [self.parts, *self.kernel] if self.parts > 1 else list(self.kernel)
        order, type_ = channels_last(len(self.kernel)), tensor_type(shape, self.dtype)
        (result,) = self.call(ctx, operands, [order] * 2, [type_], [range(len(shape))])
        return reduce(result, [0], "sum") if self.parts > 1 else result

    def shares(self, threads: int) -> Sequence[Any]:
        """Parts of the batch, ranges of groups, or ranges of the result's channels."""
        if self.parts > 1:
            return list(enumerate(slices(self.image[0], self.parts)))
        ranges = slices(self.groups if self.groups > 1 else self.grad[1], threads)
        return [(0, some) for some in ranges]

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute one of them."""
        (part, some), groups, rank = share, self.groups, len(self.kernel)
        window = (self.stride, self.padding, self.dilation)
        with alone():
            image = tensor_at(operands[0], self.image, channels_last(rank), self.dtype)
            grad = tensor_at(operands[1], self.grad, channels_last(rank), self.dtype)
            all_parts = [self.parts, *self.kernel]
            out = tensor_at(results[0], all_parts, range(rank + 1), self.dtype)[part]
            if self.parts > 1:
                image, grad = image[some], grad[some]
            else:
                grad, out = _channels(grad, some, groups), _channels(out, some, groups, dim=0)
                if groups > 1:
                    image = _channels(image, some, groups)
                    groups = some.stop - some.start
            if compute := self._kernel_of(some, image, grad, out):
                compute(image, grad, out)
                return
            no = [0] * (rank - 2)
            _, gradient, _ = aten.convolution_backward(
                grad, image, out, None, *window, False, no, groups, [False, True, False]
            )
            out.copy_(gradient)

    def _kernel_of(
        self, some: slice, image: torch.Tensor, grad: torch.Tensor, out: torch.Tensor
    ) -> OneDNNGradient | None:
        """OneDNN's kernel for a share, if it has one. Threads that ask at once may make two.

        None for groups: most have one channel, and torch's kernel is as fast for these.
        """
        key = some.start, some.stop
        if key not in self._by_onednn:
            found = None
            window = (self.stride, self.padding, self.dilation)
            if self.dtype is torch.float32 and self.groups == 1 and onednn.library() is not None:
                with contextlib.suppress(onednn.OneDNNError):
                    found = OneDNNGradient(image, grad, out, window)
            self._by_onednn[key] = found
        return self._by_onednn[key]


def _channels(tensor: torch.Tensor, some: slice, groups: int, dim: int = 1) -> torch.Tensor:
    """The channels of some groups; of one group, some of its channels."""
    each = tensor.shape[dim] // groups if groups > 1 else 1
    return tensor.narrow(dim, some.start * each, (some.stop - some.start) * each)
