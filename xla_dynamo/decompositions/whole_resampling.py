"""Keep each call of a resampling of images one operator while torch traces a graph.

Before any table of decompositions is asked, torch's Python dispatcher replaces these operators by
kernels that gather four or sixteen elements for each result; their gradients are scatters. The rule
(`lowerings.resampling`) applies one linear map for each dimension, and its transpose for gradients.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from xla_dynamo.torch_private import (
    DispatchKey,
    OpOverload,
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

Kernels: TypeAlias = dict[DispatchKey, Callable[..., Any]]

DECOMPOSING = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def overloads() -> list[OpOverload]:
    """Those of the forward operators that a graph may have, as long as they are whole."""
    packets = [getattr(aten, name) for name in _OPERATORS]
    return [op for packet in packets for op in (packet.default, packet.vec)]


@contextmanager
def resampling_is_whole() -> Iterator[None]:
    """What is traced inside has these operators as `.default`, and their backward ones."""
    changes: dict[OpOverload, Kernels] = {}
    for name in _OPERATORS:
        packet, backward = getattr(aten, name), getattr(aten, f"{name}_backward").default
        changes |= {
            packet.default: {},
            packet.vec: dict.fromkeys(DECOMPOSING, _with_sizes(packet.default)),
            backward: {DispatchKey.Meta: _gradient_of(backward)},
        }
    with replaced_kernels(changes):
        yield


@contextmanager
def replaced_kernels(changes: Mapping[OpOverload, Kernels]) -> Iterator[None]:
    """Operators have these kernels of torch's Python dispatcher, and none else that decompose."""
    before: dict[OpOverload, Kernels] = {}
    try:
        for op, kernels in changes.items():
            before[op] = dict(op.py_kernels)
            others = {k: v for k, v in op.py_kernels.items() if k not in DECOMPOSING}
            _replace(op, {**kernels, **others})
        yield
    finally:
        for op, kernels in before.items():
            _replace(op, kernels)


def _replace(op: OpOverload, kernels: Kernels) -> None:
    """Make these the kernels of torch's Python dispatcher, which remembers what it has chosen."""
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    forget_kernels(op)


def _with_sizes(op: OpOverload) -> Callable[..., torch.Tensor]:
    """The .vec overload, which is given sizes or factors; C++'s takes no sizes that are open."""

    def vec(x: torch.Tensor, output_size: Any, *settings: Any) -> torch.Tensor:
        *align_corners, factors = settings
        sizes = upsample_compute_output_size(x.size(), output_size, factors)
        return op(x, sizes, *align_corners, *(factors or [None] * len(sizes)))

    return vec


def _gradient_of(backward: OpOverload) -> Callable[..., torch.Tensor]:
    """What a gradient is like; C++'s takes no sizes that are open either."""
    keeps_format = backward is not aten.upsample_bicubic2d_backward.default  # as eager's kernels

    def like(grad: torch.Tensor, _: Any, input_size: Any, *__: Any) -> torch.Tensor:
        last = suggest_memory_format(grad) if keeps_format else None
        return grad.new_empty(input_size).contiguous(memory_format=last or torch.contiguous_format)

    return like
