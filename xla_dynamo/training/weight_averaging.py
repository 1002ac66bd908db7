"""Trace what `torch.optim.swa_utils.AveragedModel.update_parameters` does, without reading values.

It copies the weights the first time and averages from then on. A traced step computes both and
selects one.
"""

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn

from xla_dynamo.errors import UnsupportedError

Tensor: TypeAlias = torch.Tensor


def check_average(average: AveragedModel | None, model: torch.nn.Module) -> None:
    """Refuse an average of another model.

    Raises:
        UnsupportedError: its tensors have other shapes than the model's, or are fewer or more.
    """
    if average is not None:
        shapes = [
            [t.shape for t in (*m.parameters(), *m.buffers())] for m in (average.module, model)
        ]
        if shapes[0] != shapes[1]:
            raise UnsupportedError(
                "average= has other parameters or buffers than the model: make it with "
                "torch.optim.swa_utils.AveragedModel(model)"
            )


def averaged_tensors(average: AveragedModel, model: torch.nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Pairs of a tensor of the average and what it is the average, or a copy, of."""
    ours = (average.module.parameters(), average.module.buffers())
    theirs = (model.parameters(), model.buffers())
    return list(zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True))


def average_weights(
    average: AveragedModel,
    averaged: Sequence[Tensor],
    weights: Sequence[Tensor],
    copied: Sequence[bool],
    count: Tensor,
) -> None:
    """Update the average in place.

    Args:
        average: the module, for its formula.
        averaged: its tensors, in the trace.
        weights: what they are averages of, after the step.
        copied: which of them are copied instead, as buffers are by default.
        count: how many times the average was updated (i64, 0-d): one is added.
    """
    pairs = [(a, w) for a, w, c in zip(averaged, weights, copied, strict=True) if not c]
    news = [a.clone() for a, _ in pairs]
    for dtype in {new.dtype for new in news}:
        mine = [(n, w) for n, (_, w) in zip(news, pairs, strict=True) if n.dtype is dtype]
        _formula(average, [n for n, _ in mine], [w for _, w in mine], count)
    for (a, w), new in zip(pairs, news, strict=True):
        a.copy_(torch.where(count == 0, w, new))
    for a, w, c in zip(averaged, weights, copied, strict=True):
        if c:
            a.copy_(w)
    count.add_(1)


def _formula(
    average: AveragedModel, averaged: list[Tensor], weights: list[Tensor], count: Tensor
) -> None:
    if average.multi_avg_fn is not None:
        average.multi_avg_fn(averaged, weights, count)
        return
    formula = average.avg_fn or get_swa_avg_fn()
    for a, w in zip(averaged, weights, strict=True):
        a.copy_(formula(a, w, count))
