"""Keep each call of a resampling of images one operator while torch traces a graph.

Before any table of decompositions is asked, torch's Python dispatcher replaces these operators by
kernels that gather four or sixteen elements for each result; their gradients are scatters. The rule
(`rules.images.resampling`) applies one linear map for each dimension, and its transpose for
gradients.
So these kernels ask whether their thread traces for us. Modes of torch's dispatcher come too late:
autograd's keys are above them.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from xla_dynamo.torch_patches import Switch, switched, tracing
from xla_dynamo.torch_private import (
    DispatchKey,
    OpOverload,
    call_kernel,
    forget_kernels,
    suggest_memory_format,
    upsample_compute_output_size,
)

aten = torch.ops.aten

_OPERATORS = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
)

COMPOSITE = DispatchKey.CompositeImplicitAutograd
DECOMPOSING = (DispatchKey.Autograd, COMPOSITE)
_is_whole = Switch()


def overloads() -> list[OpOverload]:
    """Those of the forward operators that a graph may have, as long as they are whole."""
    packets = [getattr(aten, name) for name in _OPERATORS]
    return [op for packet in packets for op in (packet.default, packet.vec)]


@contextmanager
def resampling_is_whole() -> Iterator[None]:
    """What this thread traces inside has these operators as `.default`, and their backward ones.

    No other thread exports meanwhile (`torch_patches`).
    """
    with tracing(), _is_whole.on():
        _make_kernels()
        yield


def _make_kernels() -> None:
    for name in _OPERATORS:
        packet, backward = getattr(aten, name), getattr(aten, f"{name}_backward").default
        whole_at_its_key = {DispatchKey.Autograd: _by_autograd, COMPOSITE: _left_whole}
        for key, whole in whole_at_its_key.items():
            switched(_is_whole, packet.vec, key, functools.partial(_with_sizes, packet.default))
            for op in (packet.default, backward):
                switched(_is_whole, op, key, functools.partial(whole, op))
        if DispatchKey.Meta not in backward.py_kernels:
            backward.py_kernels[DispatchKey.Meta] = _shape_of_gradient(backward)
            forget_kernels(backward)


def _by_autograd(op: OpOverload, _: Any) -> Callable[..., Any]:
    """Torch's own kernel of autograd, in C++, which is for all devices."""
    return functools.partial(call_kernel, op, DispatchKey.Autograd)


def _left_whole(_: OpOverload, __: Any) -> Callable[..., Any]:
    """A decomposition that takes nothing apart."""
    return lambda *args, **kwargs: NotImplemented


def _with_sizes(op: OpOverload, _: Any) -> Callable[..., torch.Tensor]:
    """The .vec overload, which is given sizes or factors; C++'s takes no sizes that are dynamic."""

    def vec(x: torch.Tensor, output_size: Any, *settings: Any) -> torch.Tensor:
        *align_corners, factors = settings
        sizes = upsample_compute_output_size(x.size(), output_size, factors)
        return op(x, sizes, *align_corners, *(factors or [None] * len(sizes)))

    return vec


def _shape_of_gradient(backward: OpOverload) -> Callable[..., torch.Tensor]:
    """What a gradient is like; C++'s takes no sizes that are dynamic either."""
    keeps_format = backward is not aten.upsample_bicubic2d_backward.default  # as eager's kernels

    def like(grad: torch.Tensor, output_size: Any, input_size: Any, *others: Any) -> torch.Tensor:
        if not _is_whole.is_on and all(isinstance(n, int) for n in (*grad.shape, *input_size)):
            key = DispatchKey.Meta
            return call_kernel(backward, key, grad, output_size, input_size, *others)
        last = suggest_memory_format(grad) if keeps_format else None
        return grad.new_empty(input_size).contiguous(memory_format=last or torch.contiguous_format)

    return like
