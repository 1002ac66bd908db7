"""Trace what `torch.amp.GradScaler` does around a step, without reading values.

The scaler skips a step whose gradients overflow. A traced step has no branch: it computes the new
values, and then selects the old ones if a gradient was not finite.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


def unscale(grads: Sequence[Tensor | None], scale: Tensor) -> Tensor:
    """Divide gradients by the scale, in place, and say whether one is not finite (bool, 0-d)."""
    inverse = scale.double().reciprocal().float()
    overflow = torch.zeros((), dtype=torch.bool, device=scale.device)
    for grad in grads:
        if grad is not None:
            overflow = overflow | ~torch.isfinite(grad).all()
            grad.mul_(inverse)
    return overflow


def keep_where(overflow: Tensor, tensors: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Undo a step where a gradient overflowed."""
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(overflow, old, tensor))


def adapt_scale(
    scaler: torch.amp.GradScaler, scale: Tensor, growth: Tensor, overflow: Tensor
) -> None:
    """Shrink the scale after an overflow, grow it after enough steps without one."""
    count = torch.where(overflow, 0, growth + 1)
    grows = count == scaler.get_growth_interval()
    grown = scale * scaler.get_growth_factor()
    grown = torch.where(grows & torch.isfinite(grown), grown, scale)
    scale.copy_(torch.where(overflow, scale * scaler.get_backoff_factor(), grown))
    growth.copy_(torch.where(grows, 0, count))
