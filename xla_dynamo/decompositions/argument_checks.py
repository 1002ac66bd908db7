"""What eager checks in sizes and numbers, and neither traces nor calls with small tensors show."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten
_MOST_CATEGORIES = 1 << 24


def _source_fits(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any
) -> str | None:
    if not x.ndim or not source.ndim:
        return None
    shape, given = list(x.shape), list(source.shape)
    del shape[dim % x.ndim], given[dim % source.ndim]
    if len(shape) == len(given) and all(map(_may_be_equal, shape, given)):
        return None
    return (
        "source tensor shape must match self tensor shape, excluding the specified dimension. Got "
        f"self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
    )


def _categories(x: torch.Tensor, *_: Any, **__: Any) -> str | None:
    size = x.shape[-1] if x.ndim else 1
    many = isinstance(size, int) and size > _MOST_CATEGORIES
    return "number of categories cannot exceed 2^24" if many else None


def _boundaries(x: Any, boundaries: torch.Tensor, **_: Any) -> str | None:
    if boundaries.ndim == 1:
        return None
    return f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})"


def _order_of_gamma(x: Any, p: int) -> str | None:
    return None if p >= 1 else "p has to be greater than or equal to 1"


def _beta(x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> str | None:
    return None if beta >= 0 else "smooth_l1_loss does not support negative values for beta."


def _may_be_equal(a: Any, b: Any) -> bool:
    """Whether sizes are equal, or dynamic, which the program's own checks of sizes are for."""
    return not (isinstance(a, int) and isinstance(b, int)) or a == b


_CHECKS: dict[OpOverload, Callable[..., str | None]] = {
    aten.index_add.default: _source_fits,
    aten.index_reduce.default: _source_fits,
    aten.multinomial.default: _categories,
    aten.bucketize.Tensor: _boundaries,
    aten.mvlgamma.default: _order_of_gamma,
    aten.smooth_l1_loss.default: _beta,
}


def wrong_argument(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Why eager refuses the sizes or numbers of a call, in its words; None if it does not."""
    check = _CHECKS.get(op)
    return None if check is None else check(*args, **kwargs)
