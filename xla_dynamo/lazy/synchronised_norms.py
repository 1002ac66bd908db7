"""The operators of `torch.nn.SyncBatchNorm`, which torch has for CUDA alone, made of others.

Statistics are taken per channel, dimension 1, in float32 for the half precisions.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from xla_dynamo.lazy.signatures import Signature
from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten
Tensor: TypeAlias = torch.Tensor
_HALF = (torch.float16, torch.bfloat16)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in _HALF else x


def _others(x: Tensor) -> list[int]:
    """The dimensions over which a channel's elements lie."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    """A value for each channel, in a shape that broadcasts over the input's."""
    return values.view([1, -1, *[1] * (x.dim() - 2)])


def _stats(signature: Signature, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(_wide(x), _others(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gathered_stats(
    signature: Signature,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The statistics of all rows, from those of each process's, a row each, and their numbers."""
    numbers = counts.to(mean.dtype).unsqueeze(1)
    total = numbers.sum()
    whole = (mean * numbers).sum(0) / total
    variances = 1 / invstd.square() - eps
    squares = ((variances + (mean - whole).square()) * numbers).sum(0)
    if running_mean is not None:
        running_mean.copy_(running_mean * (1 - momentum) + whole * momentum)
    if running_var is not None:
        running_var.copy_(running_var * (1 - momentum) + squares / (total - 1) * momentum)
    return whole, torch.rsqrt(squares / total + eps)


def _normalised(
    signature: Signature,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    made = (_wide(x) - _by_channel(mean, x)) * _by_channel(invstd, x)
    if weight is not None:
        made = made * _by_channel(weight, x)
    if bias is not None:
        made = made + _by_channel(bias, x)
    return made.to(x.dtype)


def _sums_of_gradients(
    signature: Signature,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradient = _wide(gradient)
    total = gradient.sum(_others(x))
    centred = (gradient * (_wide(x) - _by_channel(mean, x))).sum(_others(x))
    kind = mean.dtype if weight is None else weight.dtype
    return total, centred, (centred * invstd).to(kind), total.to(kind)


def _gradient_of_input(
    signature: Signature,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    total: Tensor,
    centred: Tensor,
    counts: Tensor,
) -> Tensor:
    number = counts.sum().to(mean.dtype)
    from_mean = _by_channel(total / number, x)
    from_variance = (_wide(x) - _by_channel(mean, x)) * _by_channel(
        invstd.square() * centred / number, x
    )
    scale = invstd if weight is None else invstd * weight
    return ((_wide(gradient) - from_mean - from_variance) * _by_channel(scale, x)).to(x.dtype)


SYNCHRONISED: dict[OpOverload, Callable[..., Any]] = {
    aten.batch_norm_stats.default: _stats,
    aten.batch_norm_gather_stats_with_counts.default: _gathered_stats,
    aten.batch_norm_elemt.default: _normalised,
    aten.batch_norm_backward_reduce.default: _sums_of_gradients,
    aten.batch_norm_backward_elemt.default: _gradient_of_input,
}
