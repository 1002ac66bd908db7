"""Make numbers that may differ at the next step inputs of a graph, not constants.

If a learning rate, a bias correction or a loss scale were a constant of a graph, each step would be
another graph. So where an operator takes a number that is none of the usual constants, the graph
has an input in its place, and calls a form of the operator that takes tensors. These forms are the
functions here, which AOTAutograd traces. Each computes what eager's kernel does, in the same dtype.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.runtime.processes.job import joined
from xla_dynamo.torch_private import OpOverload, schema

aten = torch.ops.aten
Tensor: TypeAlias = torch.Tensor

# Usual numbers: XLA can simplify the operations that have them as constants.
CONSTANTS = frozenset({0, 1, -1, 2, 0.5})


def may_change(number: float) -> bool:
    """Whether a number is to be an input: all but usual constants, infinities, what float64 lacks.

    Where several processes run one program, each may have its own numbers: of its rank, say.
    """
    if not math.isfinite(number) or (isinstance(number, int) and abs(number) > 2**53):
        return False
    return number not in CONSTANTS or joined() is not None


def _compute(dtype: torch.dtype) -> torch.dtype:
    """What eager's kernels for the CPU compute in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _in(dtype: torch.dtype, number: Any) -> Any:
    """A changing number in a dtype; one of the constants as it is."""
    return number.to(dtype) if isinstance(number, torch.Tensor) else number


def _sum(x: Tensor, other: Any, alpha: Any, sign: int, out: torch.dtype) -> Tensor:
    wide = _compute(out)

    alpha = _in(wide, _in(out, alpha))  # eager's sums have numbers in the result's dtype
    if not isinstance(other, torch.Tensor):
        other = torch.full((), other, dtype=out, device=x.device)
    other = other.to(out).to(wide) if other.dim() == 0 else other.to(wide)
    x = x.to(wide)
    if torch.is_tensor(alpha):
        return torch.addcmul(x, other, alpha if sign > 0 else -alpha)
    return torch.add(x, other, alpha=sign * alpha)


def _add(x: Tensor, other: Any, alpha: Any = 1, *, out: torch.dtype) -> Tensor:
    return _sum(x, other, alpha, 1, out)


def _sub(x: Tensor, other: Any, alpha: Any = 1, *, out: torch.dtype) -> Tensor:
    return _sum(x, other, alpha, -1, out)


def _mul(x: Tensor, other: Any, *, out: torch.dtype) -> Tensor:
    return x.to(_compute(out)) * _in(_compute(out), other)


def _div(x: Tensor, other: Any, *, out: torch.dtype) -> Tensor:
    return x.to(_compute(out)) / _in(_compute(out), other)


def _addcmul(x: Tensor, y: Tensor, z: Tensor, value: Any = 1, *, out: torch.dtype) -> Tensor:
    wide = _compute(out)
    return torch.addcmul(x.to(wide), y.to(wide) * _in(wide, value), z.to(wide))


def _addcdiv(x: Tensor, y: Tensor, z: Tensor, value: Any = 1, *, out: torch.dtype) -> Tensor:
    wide = _compute(out)
    return torch.addcdiv(x.to(wide), y.to(wide) * _in(wide, value), z.to(wide))


def _lerp(x: Tensor, end: Tensor, weight: Any, *, out: torch.dtype) -> Tensor:
    wide = _compute(out)
    return torch.lerp(x.to(wide), end.to(wide), _in(wide, weight))


def _fill(x: Tensor, value: Any, *, out: torch.dtype) -> Tensor:
    return _in(out, value).expand(x.shape)


def _masked_fill(x: Tensor, mask: Tensor, value: Any, *, out: torch.dtype) -> Tensor:
    return torch.where(mask, _in(out, value), x)


def _rsub(x: Tensor, other: Any, alpha: Any = 1, *, out: torch.dtype) -> Tensor:
    start = (
        torch.full((), other, dtype=out, device=x.device) if not torch.is_tensor(other) else other
    )
    return _sum(start.to(out).expand(x.shape), x, alpha, -1, out)


def _compared(compare: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def form(x: Tensor, number: Tensor, *, out: torch.dtype) -> Tensor:
        if x.is_floating_point() or x.is_complex():
            return compare(x, number.to(x.dtype))
        if number.is_floating_point():
            wide = torch.get_default_dtype()
        else:  # eager wraps numbers around that the dtype lacks
            wide = torch.int64 if x.dtype is torch.bool else x.dtype
        return compare(x.to(wide), number.to(wide))

    return form


def _full(size: Sequence[int], value: Tensor, *, out: torch.dtype, **_: Any) -> Tensor:
    return torch.zeros(size, dtype=out, device=value.device) + _in(out, value)


def _full_like(
    x: Tensor, value: Tensor, *, out: torch.dtype, memory_format: Any = None, **_: Any
) -> Tensor:
    zeros = torch.zeros_like(x, dtype=out, memory_format=memory_format)
    return zeros + _in(out, value)


def _new_full(
    x: Tensor, size: Sequence[int], value: Tensor, *, out: torch.dtype, **_: Any
) -> Tensor:
    return _full(size, value, out=out)


# Operator, form, and the arguments that may change: by position and by name.
_FORMS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "add.Tensor": (_add, (1, "other", "alpha")),
    "add.Scalar": (_add, (1, 2, "other", "alpha")),
    "sub.Tensor": (_sub, (1, "other", "alpha")),
    "sub.Scalar": (_sub, (1, 2, "other", "alpha")),
    "mul.Tensor": (_mul, (1, "other")),
    "mul.Scalar": (_mul, (1, "other")),
    "div.Tensor": (_div, (1, "other")),
    "div.Scalar": (_div, (1, "other")),
    "addcmul": (_addcmul, ("value",)),
    "addcdiv": (_addcdiv, ("value",)),
    "lerp.Scalar": (_lerp, (2, "weight")),
    "fill.Scalar": (_fill, (1, "value")),
    "masked_fill.Scalar": (_masked_fill, (2, "value")),
    "full": (_full, (1, "fill_value")),
    "full_like": (_full_like, (1, "fill_value")),
    "new_full": (_new_full, (2, "fill_value")),
    "rsub.Scalar": (_rsub, (1, 2, "other", "alpha")),
    **{
        f"{compare.__name__}.Scalar": (_compared(compare), (1, "other"))
        for compare in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
    },
}
# Of lists: each form with its arguments, as in the operator of one tensor.
_LISTS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "add.Scalar": (_add, (1, "scalar")),
    "add.ScalarList": (_add, (1, "scalars")),
    "add.List": (_add, ("alpha",)),
    "sub.Scalar": (_sub, (1, "scalar")),
    "sub.ScalarList": (_sub, (1, "scalars")),
    "sub.List": (_sub, ("alpha",)),
    "mul.Scalar": (_mul, (1, "scalar")),
    "mul.ScalarList": (_mul, (1, "scalars")),
    "div.Scalar": (_div, (1, "scalar")),
    "div.ScalarList": (_div, (1, "scalars")),
    "addcmul.Scalar": (_addcmul, (3, "value")),
    "addcmul.ScalarList": (_addcmul, (3, "scalars")),
    "addcdiv.Scalar": (_addcdiv, (3, "value")),
    "addcdiv.ScalarList": (_addcdiv, (3, "scalars")),
    "lerp.Scalar": (_lerp, (2, "weight")),
    "lerp.ScalarList": (_lerp, (2, "weights")),
}


def _parts(op: OpOverload) -> tuple[str, bool, bool]:
    """The key in a table of forms, whether of lists, and whether in place."""
    name, overload = schema(op).name.removeprefix("aten::"), schema(op).overload_name
    lists = name.startswith("_foreach_")
    name = name.removeprefix("_foreach_")
    in_place = name.endswith("_")
    key = name.rstrip("_") + (f".{overload}" if overload else "")
    return key, lists, in_place


@functools.cache
def changing_numbers_of(op: OpOverload) -> frozenset[Any] | None:
    """The arguments of an operator, by position and name, that may be a changing number."""
    if op.namespace != "aten":
        return None
    key, lists, _ = _parts(op)
    found = (_LISTS if lists else _FORMS).get(key)
    return frozenset(found[1]) if found else None


@functools.cache
def form_of(op: OpOverload) -> Callable[..., Any]:
    """What a graph calls for an operator whose changing numbers are 0-d tensors.

    It is called with the dtype of the result, or those of a list, as `out` beside the arguments.
    """
    key, lists, in_place = _parts(op)
    single = (_LISTS if lists else _FORMS)[key][0]
    names = [a.name for a in schema(op).arguments]

    def run(x: Any, *args: Any, out: Any, **kwargs: Any) -> Any:
        return _finished(x, single(x, *args, out=out, **kwargs), out, in_place)

    def run_lists(xs: Sequence[Tensor], *args: Any, out: Any, **kwargs: Any) -> Any:
        count = len(xs)
        bound = dict(zip(names[1:], args, strict=False)) | kwargs
        columns = [v if isinstance(v, list | tuple) else [v] * count for v in bound.values()]
        singular = [_SINGULAR.get(n, n) for n in bound]
        results = []
        for x, dtype, *row in zip(xs, out, *columns, strict=True):
            named = {n: v for n, v in zip(singular, row, strict=True) if n == "alpha"}
            rest = [v for n, v in zip(singular, row, strict=True) if n != "alpha"]
            results.append(_finished(x, single(x, *rest, out=dtype, **named), dtype, in_place))
        return None if in_place else results

    return run_lists if lists else run


_SINGULAR = {"scalars": "scalar"}


def _finished(x: Tensor, result: Tensor, out: torch.dtype, in_place: bool) -> Tensor:
    result = result.to(out)
    return x.copy_(result) if in_place else result
