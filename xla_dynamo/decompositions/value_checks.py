"""What eager checks in the values of tensors before it draws from them, as assertions of a graph.

The program computes whether a condition holds, and torch raises the error when it is over.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from xla_dynamo.graphs.nodes import assertion
from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten
_Conditions = Iterator[tuple[torch.Tensor, str]]


def _of_multinomial(x: torch.Tensor, *_: Any, **__: Any) -> _Conditions:
    yield (
        (x >= 0).all() & x.isfinite().all(),
        ("probability tensor contains either `inf`, `nan` or element < 0"),
    )
    positive = (x.sum(-1) > 0).all()
    yield positive, "invalid multinomial distribution (sum of probabilities <= 0)"


def _of_bernoulli(x: torch.Tensor, p: torch.Tensor | None = None, **_: Any) -> _Conditions:
    p = x if p is None else p
    yield ((p >= 0) & (p <= 1)).all(), "Expected p_in >= 0 && p_in <= 1 to be true, but got false."


def _of_normal(_: Any, std: Any = 1.0, **__: Any) -> _Conditions:
    if isinstance(std, torch.Tensor):
        yield (std >= 0).all(), "normal expects all elements of std >= 0.0"


def _of_poisson(rate: torch.Tensor, *_: Any) -> _Conditions:
    yield (rate >= 0).all(), "invalid Poisson rate, expected rate to be non-negative"


_OF: dict[OpOverload, Callable[..., _Conditions]] = {
    aten.multinomial.default: _of_multinomial,
    aten.bernoulli.default: _of_bernoulli,
    aten.bernoulli.Tensor: _of_bernoulli,
    aten.normal.Tensor_Tensor: _of_normal,
    aten.normal.float_Tensor: _of_normal,
    aten.poisson.default: _of_poisson,
}


def has_conditions(op: OpOverload) -> bool:
    """Whether eager checks values before an operator draws."""
    return op in _OF


def assert_conditions(op: OpOverload, args: Any, kwargs: Any, place: str) -> None:
    """Trace the assertions that an operator's arguments are as eager wants them, for a message."""
    kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    for holds, message in _OF[op](*args, **kwargs):
        assertion(holds, f"{message}{place}")
