"""Decompose operators over lists of tensors, as optimizers use them, into one for each tensor."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.torch_private import OpOverload, all_operator_names, schema

aten = torch.ops.aten
_PREFIX = "aten::_foreach_"


def _powsum(x: torch.Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.sum(aten.pow(aten.abs(x), ord), dtype=dtype)


def _norm(x: torch.Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.linalg_vector_norm(x, ord, dtype=dtype)


def _at_least(x: torch.Tensor, other: Any) -> torch.Tensor:
    return (aten.maximum if isinstance(other, torch.Tensor) else aten.clamp_min)(x, other)


def _at_most(x: torch.Tensor, other: Any) -> torch.Tensor:
    return (aten.minimum if isinstance(other, torch.Tensor) else aten.clamp_max)(x, other)


def _addcmul(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, value: Any = 1) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return x + value * (y * z)
    return aten.addcmul(x, y, z, value=value)


def _addcdiv(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, value: Any = 1) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return x + value * (y / z)
    return aten.addcdiv(x, y, z, value=value)


# Operators of lists whose operator of one tensor has another name.
_RENAMED: dict[str, Callable[..., torch.Tensor]] = {
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "maximum": _at_least,
    "minimum": _at_most,
    "norm": _norm,
    "powsum": _powsum,
}


def _one_by_one(
    single: Callable[..., torch.Tensor], op: OpOverload
) -> Callable[..., list[torch.Tensor]]:
    """Call `single` on the elements of all lists; what is no list is the same for each."""
    lists = {
        index
        for index, argument in enumerate(schema(op).arguments)
        if isinstance(argument.type, torch.ListType) or argument.name == "scalars"
    }

    def decompose(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        count = next(len(a) for index, a in enumerate(args) if index in lists)
        columns = [
            list(a) if index in lists else [a] * count  # a tensor of scalars comes apart too
            for index, a in enumerate(args)
        ]
        return [single(*row, **kwargs) for row in zip(*columns, strict=True)]

    return decompose


@functools.cache
def foreach_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """Every functional `aten._foreach_*` overload, in operators of one tensor."""
    table = {}
    qualified = all_operator_names()
    for name in {q.split(".")[0] for q in qualified if q.startswith(_PREFIX)}:
        base = name.removeprefix(_PREFIX)
        single = _RENAMED.get(base) or getattr(aten, base, None)
        packet = getattr(aten, "_foreach_" + base, None)
        if single is None or packet is None or base.endswith("_"):
            continue
        for overload in (getattr(packet, overload) for overload in packet.overloads()):
            if not schema(overload).is_mutable:
                table[overload] = _one_by_one(single, overload)
    return table
