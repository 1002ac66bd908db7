"""The call for weight gradients of convolutions from programs for the CPU.

oneDNN's own library computes it, where it is installed and has a kernel, and else torch's.
"""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.runtime.cpu import onednn, onednn_weight_gradients
from xla_dynamo.runtime.cpu.foreign_calls import Kernel, kernel
from xla_dynamo.runtime.cpu.torch_kernels import alone, ranges_of, tensor_at

aten = torch.ops.aten


@kernel("weight_gradient")
class WeightGradient(Kernel):
    """The gradient of a convolution's kernel [out, in / groups, *window].

    Operands are the image and the gradient of the result, both with the channels innermost. The
    text is JSON: the shapes `image`, `grad` and `kernel`, `window` as strides, paddings and
    dilations, `groups` and `dtype`, and `parts` of the batch: if there are several, each has its
    own result of [parts, out, in / groups, *window], and they are to be summed.
    """

    def __init__(self, text: str) -> None:
        """Read the text."""
        given = json.loads(text)
        self._image, self._grad, self._kernel = (given[n] for n in ("image", "grad", "kernel"))
        self._window, self._groups, self._parts = (given[n] for n in ("window", "groups", "parts"))
        self._dtype = getattr(torch, given["dtype"])
        self._by_onednn: dict[Any, onednn_weight_gradients.WeightGradient | None] = {}

    def shares(self, threads: int) -> Sequence[Any]:
        """Parts of the batch, ranges of groups, or ranges of the result's channels."""
        if self._parts > 1:
            return list(enumerate(ranges_of(self._image[0], self._parts)))
        ranges = ranges_of(self._groups if self._groups > 1 else self._grad[1], threads)
        return [(0, some) for some in ranges]

    def run(self, share: Any, operands: Sequence[int], results: Sequence[int]) -> None:
        """Compute one of them."""
        (part, some), groups, rank = share, self._groups, len(self._kernel)
        last = [0, *range(2, rank), 1]
        with alone():
            image = tensor_at(operands[0], self._image, last, self._dtype)
            grad = tensor_at(operands[1], self._grad, last, self._dtype)
            all_parts = [self._parts, *self._kernel]
            out = tensor_at(results[0], all_parts, range(rank + 1), self._dtype)[part]
            if self._parts > 1:
                image, grad = image[some], grad[some]
            else:
                grad, out = _channels(grad, some, groups), _channels(out, some, groups, dim=0)
                if groups > 1:
                    image = _channels(image, some, groups)
                    groups = some.stop - some.start
            if compute := self._kernel_of(share, image, grad, out):
                compute(image, grad, out)
                return
            no = [0] * (rank - 2)
            _, gradient, _ = aten.convolution_backward(
                grad, image, out, None, *self._window, False, no, groups, [False, True, False]
            )
            out.copy_(gradient)

    def _kernel_of(
        self, share: Any, image: torch.Tensor, grad: torch.Tensor, out: torch.Tensor
    ) -> onednn_weight_gradients.WeightGradient | None:
        """OneDNN's kernel for a share, if it has one. Threads that ask at once may make two.

        None for groups: most have one channel, and torch's kernel is as fast for these.
        """
        _, some = share
        key = some.start, some.stop
        if key not in self._by_onednn:
            found = None
            if self._dtype is torch.float32 and self._groups == 1 and onednn.library() is not None:
                with contextlib.suppress(onednn.OneDNNError):
                    found = onednn_weight_gradients.WeightGradient(image, grad, out, self._window)
            self._by_onednn[key] = found
        return self._by_onednn[key]


def _channels(tensor: torch.Tensor, some: slice, groups: int, dim: int = 1) -> torch.Tensor:
    """The channels of some groups; of one group, some of its channels."""
    each = tensor.shape[dim] // groups if groups > 1 else 1
    return tensor.narrow(dim, some.start * each, (some.stop - some.start) * each)
