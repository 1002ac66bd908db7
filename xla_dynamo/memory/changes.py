"""Notice that a parameter has changed since it was last read.

A change in place increments torch's version counter, and a parameter whose memory was replaced has
another address. Two things in torch change tensors without counting: batch norm in training, and
fused optimizers, whose steps a hook sees. Writes through `.data`, by NumPy, by collectives of
torch.distributed or by other processes are not seen: `refreeze` is for those.
"""

import functools
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Epoch:
    """A number that differs after each change that torch does not count."""

    number = 0
    is_over = False  # set by a hook that Dynamo may have traced: it must read nothing


def note_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """A hook behind the steps of all optimizers: the fused ones change parameters uncounted."""
    if any(group.get("fused") for group in optimizer.param_groups):
        Epoch.is_over = True


watch_optimizers = functools.cache(lambda: register_optimizer_step_post_hook(note_step))


def refreeze() -> None:
    """Let all compiled graphs read their parameters anew.

    For graphs compiled with `options={"freeze": True}`, or divided over a mesh, after changes that
    nobody counts: through `parameter.data` or another tensor that was given its memory by it,
    through NumPy, by a collective of `torch.distributed`, or by another process.
    """
    Epoch.is_over = False
    Epoch.number += 1


def epoch() -> int:
    """The number of the present epoch, which begins if the one before is over."""
    if Epoch.is_over:
        refreeze()
    return Epoch.number
