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

from xla_dynamo.process_state import kept


class _Epoch:
    """A number that differs after each change that torch does not count."""

    def __init__(self) -> None:
        self.number = 0
        self.is_over = False  # set by a hook that Dynamo may have traced: it must read nothing


_epoch = kept(_Epoch)


def note_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """A hook behind the steps of all optimizers: the fused ones change parameters uncounted."""
    if any(group.get("fused") for group in optimizer.param_groups):
        _epoch.is_over = True


watch_optimizers = functools.cache(lambda: register_optimizer_step_post_hook(note_step))


def refreeze() -> None:
    """Let all compiled graphs read their parameters anew.

    For graphs compiled with `options={"freeze": True}`, or partitioned over a mesh, after changes
    that nobody counts: through `parameter.data` or another tensor that was given its memory by it,
    through NumPy, by a collective of `torch.distributed`, or by another process.
    """
    _epoch.is_over = False
    _epoch.number += 1


def epoch() -> int:
    """The number of the present epoch, which begins if the one before is over."""
    if _epoch.is_over:
        refreeze()
    return _epoch.number
