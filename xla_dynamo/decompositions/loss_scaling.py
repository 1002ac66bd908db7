"""What `torch.amp.GradScaler` computes: gradients without the loss's scale, and the next scale."""

from collections.abc import Sequence
from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor
aten = torch.ops.aten


def unscaled(
    self: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients times a number f32[], and 1 in `found_inf`, f32[1] or f32[], if any is not finite.

    Half types are multiplied in float32. Source:
    `aten::_amp_foreach_non_finite_check_and_unscale`.
    """
    # Of whole tensors, which may be sharded.
    overflows = [~torch.isfinite(grad).all() for grad in self]
    for overflow in overflows:
        found_inf = torch.where(overflow, torch.ones_like(found_inf), found_inf)
    wide = [grad.float() if grad.dtype.itemsize < 4 else grad for grad in self]
    made = [(w * inv_scale).to(g.dtype) for w, g in zip(wide, self, strict=True)]
    return made, found_inf


def next_scale(
    self: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[Tensor, Tensor]:
    """The scale, f32[], and the count of steps without overflow since it changed, i32[].

    It grows after so many steps in a row, unless it would not be finite, and shrinks after each
    overflow. Source: `aten::_amp_update_scale`.
    """
    overflowed = (found_inf != 0).reshape(growth_tracker.shape)
    steps = growth_tracker + 1
    is_due = steps == growth_interval
    grown = self * scale_growth_factor
    kept = torch.where(is_due & torch.isfinite(grown), grown, self)
    scale = torch.where(overflowed, self * scale_backoff_factor, kept)
    return scale, torch.where(overflowed | is_due, torch.zeros_like(steps), steps)


DECOMPOSITIONS = {
    aten._amp_foreach_non_finite_check_and_unscale.default: unscaled,
    aten._amp_update_scale.default: next_scale,
}
