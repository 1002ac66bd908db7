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
from xla_dynamo.runtime.cpu import onednn, onednn_weight_gradients
from xla_dynamo.runtime.cpu.torch_shares import alone, ranges_of, tensor_at

# By `python -m bench run --suite training --mode training`: multiplications below which a call
# costs more than it gains.
FEWEST_IN_WEIGHT_GRADIENT = 1 << 20
# Elements of a weight for one of the convolution's result, above which XLA's own weight gradient
# costs less: oneDNN puts the weight into blocks and back.
LARGEST_WEIGHT = 8
# Parts of the batch whose weight gradients are computed side by side and summed, if together they
# are no larger than the convolution's result.
MOST_PARTS = 8

aten = torch.ops.aten


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
    _by_onednn: dict[tuple[int, int], onednn_weight_gradients.WeightGradient | None] = (
        dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)
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
            return list(enumerate(ranges_of(self.image[0], self.parts)))
        ranges = ranges_of(self.groups if self.groups > 1 else self.grad[1], threads)
        return [(0, some) for some in ranges]

    def run(self, share: Any, operands: Sequence[int], results: Sequence[int]) -> None:
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
    ) -> onednn_weight_gradients.WeightGradient | None:
        """OneDNN's kernel for a share, if it has one. Threads that ask at once may make two.

        None for groups: most have one channel, and torch's kernel is as fast for these.
        """
        key = some.start, some.stop
        if key not in self._by_onednn:
            found = None
            window = (self.stride, self.padding, self.dilation)
            if self.dtype is torch.float32 and self.groups == 1 and onednn.library() is not None:
                with contextlib.suppress(onednn.OneDNNError):
                    found = onednn_weight_gradients.WeightGradient(image, grad, out, window)
            self._by_onednn[key] = found
        return self._by_onednn[key]


def _channels(tensor: torch.Tensor, some: slice, groups: int, dim: int = 1) -> torch.Tensor:
    """The channels of some groups; of one group, some of its channels."""
    each = tensor.shape[dim] // groups if groups > 1 else 1
    return tensor.narrow(dim, some.start * each, (some.stop - some.start) * each)
