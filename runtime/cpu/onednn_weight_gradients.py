"""Weight gradients of convolutions by oneDNN, in the layouts of memory that it chooses itself.

With the channels innermost, as programs have images, oneDNN's kernels for AVX2 take up to twice as
long as with the channels in blocks. So the image and the gradient are brought into blocks first,
which costs a tenth of what it gains. torch's operator does so only if both are row-major.
"""

from collections.abc import Sequence

import torch

from xla_dynamo.runtime.cpu import onednn

# Numbers of oneapi/dnnl/dnnl_types.h: what memory is to a primitive, and what may be asked of one.
_IMAGE, _GRADIENT, _WEIGHT = 1, 145, 161
_IMAGE_DESC, _WEIGHT_DESC, _GRADIENT_DESC, _TRAINING = 129, 132, 134, 64
# Beginnings of the names of kernels that are slow: for what the others do not take.
_SLOW = ("ref", "gemm")


class WeightGradient:
    """The kernel for images, gradients and weights of one shape and layout; threads may share it.

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
