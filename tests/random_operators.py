"""The operators of random programs: each kind draws one that suits its operands.

A kind returns a name, a function, and whether its result is exact; or None where it does not apply.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32)
SMALL = (torch.uint8, torch.int8, torch.int16)
# Half types are left out: eager rounds them after every operator, and XLA does not.
DTYPES = (*FLOATS, *FLOATS, *INTEGERS, *INTEGERS, *SMALL, torch.bool, torch.bool, torch.complex64)


@dataclasses.dataclass
class Value:
    """What eager computed at one step, and whether it is exact.

    Rounding differs between the two in the last bit, so only values that no rounding went into
    are given to operations that jump: comparisons, sorts, casts to integers.
    """

    tensor: torch.Tensor
    exact: bool = True

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point() or self.tensor.is_complex()

    @property
    def is_bool(self) -> bool:
        return self.tensor.dtype is torch.bool


Made = tuple[str, Callable[..., torch.Tensor], bool]


def unary(draw: Any, x: Value) -> Made | None:
    if x.is_bool:
        return "logical_not", torch.logical_not, True
    exact = {"neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "square": torch.square}
    if not x.is_float:
        name = draw(st.sampled_from([*exact, "bitwise_not"]))
        return name, {**exact, "bitwise_not": torch.bitwise_not}[name], True
    smooth = {
        "sin": torch.sin, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu,
        "expm1": lambda t: torch.expm1(torch.tanh(t)), "root": lambda t: t.abs().add(1).sqrt(),
        "gelu": torch.nn.functional.gelu, "erf": torch.erf, "atan": torch.atan,
    }  # fmt: skip
    jumps = {"floor": torch.floor, "round": torch.round, "trunc": torch.trunc}
    if x.exact and draw(st.booleans()):
        choices = {"neg": torch.neg, "abs": torch.abs, **jumps}
        name = draw(st.sampled_from(sorted(choices)))
        return name, choices[name], True
    name = draw(st.sampled_from(sorted(smooth)))
    return name, smooth[name], False


def reduction(draw: Any, x: Value) -> Made | None:
    dim = draw(st.integers(-x.tensor.dim(), x.tensor.dim() - 1)) if x.tensor.dim() else -1
    keep = draw(st.booleans())
    size = x.tensor.shape[dim] if x.tensor.dim() else 1
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "sum": lambda t: t.sum(dim, keepdim=keep),
        "sum_all": torch.sum,
        "cumsum": lambda t: t.cumsum(dim),
    }
    exact = not x.is_float
    if x.exact:
        choices |= {"any": lambda t: t.any(dim, keepdim=keep), "all": torch.all}
    if x.is_float:
        choices |= {"mean": lambda t: t.mean(dim, keepdim=keep)}
        if size:
            choices |= {"softmax": lambda t: t.softmax(dim)}
    if size:
        choices |= {"amax": lambda t: t.amax(dim, keepdim=keep)}
        if x.exact and not x.is_bool:
            choices |= {
                "argmin": lambda t: t.argmin(dim, keepdim=keep),
                "sort": lambda t: t.sort(dim=dim, stable=True).values,
            }
    name = draw(st.sampled_from(sorted(choices)))
    return (
        name,
        choices[name],
        exact or (x.exact and name in ("amax", "any", "all", "argmin", "sort")),
    )


def view(draw: Any, x: Value) -> Made | None:
    rank = x.tensor.dim()
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "unsqueeze": lambda t: t.unsqueeze(place),
        "flatten": lambda t: t.flatten(),
        "reshape": lambda t: t.reshape(t.shape[::-1]),
        "expand": lambda t: t.expand(2, *t.shape),
        "contiguous": lambda t: t.contiguous(),
        "clone": lambda t: t.clone(),
    }
    place = draw(st.integers(-rank - 1, rank))
    if rank:
        dim = draw(st.integers(-rank, rank - 1))
        size = x.tensor.shape[dim]
        start, step = draw(st.integers(-3, 3)), draw(st.integers(1, 2))
        order = draw(st.permutations(range(rank)))
        choices |= {
            "permute": lambda t: t.permute(order),
            "squeeze": lambda t: t.squeeze(dim),
            "slice": lambda t: t[start::step],
            "flip": lambda t: t.flip(dim),
            "roll": lambda t: t.roll(start, dim),
            "chunk": lambda t: t.chunk(2, dim)[0],
            "cat": lambda t: torch.cat([t, t], dim),
            "repeat": lambda t: t.repeat(2, *[1] * rank),
        }
        if size:
            index = draw(st.integers(-size, size - 1))
            choices |= {
                "select": lambda t: t.select(dim, index),
                "index_select": lambda t: t.index_select(dim, torch.tensor([index % size, 0])),
                "take": lambda t: t.transpose(0, dim)[[index, 0]],
            }
        if rank > 1:
            choices |= {"tril": lambda t: t.tril(start), "diagonal": lambda t: t.diagonal(start)}
    name = draw(st.sampled_from(sorted(choices)))
    return name, choices[name], x.exact


def cast(draw: Any, x: Value) -> Made | None:
    if x.tensor.is_complex():
        return None  # to a real number, torch warns
    dtype = draw(st.sampled_from(DTYPES if x.exact else FLOATS))
    return f"to {dtype}", lambda t: t.to(dtype), x.exact


def scalar(draw: Any, x: Value) -> Made | None:
    number = draw(st.sampled_from([0, 1, -3, 2.5, True]))
    exact = x.exact and not x.is_float
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "add": lambda t: t + number,
        "mul": lambda t: number * t,
        "divide": lambda t: t / 4,
        "clamp": lambda t: t if x.is_bool else t.clamp(min=-1),
        "where": lambda t: torch.where(t == t, t, number),
    }
    if x.exact:
        choices |= {"compare": lambda t: t >= number, "floor_divide": lambda t: t // 3}
        choices |= {} if x.is_bool else {"remainder": lambda t: t % 3}
    name = draw(st.sampled_from(sorted(choices)))
    return name, choices[name], name == "compare" or (exact and isinstance(number, int))


def binary(draw: Any, x: Value, y: Value) -> Made | None:
    try:
        torch.broadcast_shapes(x.tensor.shape, y.tensor.shape)
    except RuntimeError:
        return None
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "add": torch.add, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
        "atan2": torch.atan2, "where": lambda a, b: torch.where(a == a, a, b),
    }  # fmt: skip
    if not (x.is_bool or y.is_bool):
        choices |= {"sub": torch.sub, "hypot": lambda a, b: a * a + b * b}
    if x.exact and y.exact:
        choices |= {"less": torch.lt, "equal": torch.eq, "both": torch.logical_and}
    name = draw(st.sampled_from(sorted(choices)))
    rounds = (x.is_float or y.is_float) and name in ("add", "mul", "sub", "hypot")
    selects = name in ("less", "equal", "both", "maximum", "minimum", "where")
    exact = x.exact and y.exact and not rounds and (selects or name != "atan2")
    return name, choices[name], exact


def matmul(draw: Any, x: Value, y: Value) -> Made | None:
    a, b = x.tensor, y.tensor
    if a.dtype is not b.dtype or x.is_bool or not a.dim() or not b.dim():
        return None
    exact = x.exact and y.exact and not x.is_float
    if a.shape[-1] == b.shape[max(b.dim() - 2, 0)] and a.shape[:-2] == b.shape[:-2]:
        return "matmul", torch.matmul, exact
    if a.dim() > 1 and a.shape == b.shape:
        return "matmul of transpose", lambda a, b: a @ b.mT, exact
    return None


def in_place(draw: Any, x: Value) -> Made | None:
    """Changes that no rounding goes into, so that what shares the memory stays exact."""
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "fill_": lambda t: t.fill_(1),
        "zero first": lambda t: (t[:1].zero_(), t)[1],
    }
    if x.is_bool:
        choices |= {"logical_not_": lambda t: t.logical_not_()}
    else:
        choices |= {"neg_": lambda t: t.neg_(), "clamp_": lambda t: t.clamp_(-1, 1)}
    name = draw(st.sampled_from(sorted(choices)))
    return name, choices[name], x.exact


def several(draw: Any, x: Value) -> Made | None:
    """One of the results of an operator that has several."""
    rank = x.tensor.dim()
    if not rank:
        return None
    dim = draw(st.integers(-rank, rank - 1))
    size, which = x.tensor.shape[dim], draw(st.integers(0, 1))
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "split": lambda t: t.split(2, dim)[-1],
        "aminmax": lambda t: torch.aminmax(t, dim=dim)[which],
    }
    if size:
        choices |= {
            "unbind": lambda t: t.unbind(dim)[size - 1],
            "max": lambda t: t.max(dim).values,
            "cummin": lambda t: t.cummin(dim).values,
        }
        if not x.is_float:  # of equal elements any one may have the gradient
            choices["topk"] = lambda t: t.topk(min(size, 2), dim).values
        if x.exact:
            choices |= {
                "order": lambda t: t.sort(dim=dim, stable=True, descending=bool(which)).indices,
            }
    name = draw(st.sampled_from(sorted(choices)))
    return name, choices[name], x.exact


def indexed(draw: Any, x: Value) -> Made | None:
    """Reads and writes at the places that a tensor names, out of place."""
    rank = x.tensor.dim()
    if not rank or not x.tensor.numel():
        return None
    dim = draw(st.integers(-rank, rank - 1))
    size = x.tensor.shape[dim]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    index = torch.randint(size, x.tensor.shape, generator=generator)
    row = torch.randint(-size, size, (3,), generator=generator)
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "gather": lambda t: t.gather(dim, index),
        "take_along_dim": lambda t: t.take_along_dim(index, dim),
        "scatter": lambda t: t.scatter(dim, index.clamp(max=0), 1),
        "scatter_add": lambda t: t.scatter_add(dim, index, t),
        "index_add": lambda t: t.index_add(dim, row % size, t.index_select(dim, row % size)),
        "index_fill": lambda t: t.index_fill(dim, row % size, 1),
        "index": lambda t: t.movedim(dim, 0)[row],
        "slice_scatter": lambda t: t.slice_scatter(t.narrow(dim, 0, 1), dim, size - 1, size),
        "select_scatter": lambda t: t.select_scatter(t.select(dim, 0), dim, size - 1),
        "masked_fill": lambda t: t.masked_fill(index > 0, 1),
    }
    name = draw(st.sampled_from(sorted(choices)))
    adds = x.is_float and name in ("scatter_add", "index_add")
    return name, choices[name], x.exact and not adds


def network(draw: Any, x: Value) -> Made | None:
    """What layers of networks are made of."""
    t, rank = x.tensor, x.tensor.dim()
    if t.dtype not in FLOATS or not rank:
        return None
    last = t.shape[-1]
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "log_softmax": lambda t: t.log_softmax(-1),
        "layer_norm": lambda t: F.layer_norm(t, (last,), eps=1.0),
        "linear": lambda t: F.linear(t, torch.ones(3, last, dtype=t.dtype)),
        "glu": lambda t: F.glu(torch.cat([t, t], -1), -1),
        "pad": lambda t: F.pad(t, (1, 2), value=0.5),
        "dropout": lambda t: F.dropout(t, 0.5, training=False),
    }
    if last:
        choices |= {
            "logsumexp": lambda t: t.logsumexp(-1),
            "std": lambda t: (t.var(-1, correction=0) + 1).sqrt(),
        }
    if rank == 3 and t.numel() and last > 1:
        choices |= {
            "conv1d": lambda t: F.conv1d(t, torch.ones(2, t.shape[1], 2, dtype=t.dtype)),
            "max_pool1d": lambda t: F.max_pool1d(t, 2, stride=1),
            "avg_pool1d": lambda t: F.avg_pool1d(t, 2, padding=1),
            "interpolate": lambda t: F.interpolate(t, scale_factor=2.0),
        }
    name = draw(st.sampled_from(sorted(choices)))
    return name, choices[name], x.exact and name in ("pad", "dropout", "max_pool1d", "interpolate")


def by_value(draw: Any, x: Value) -> Made | None:
    """Operators whose results have sizes that depend on values: torch runs them."""
    if not x.exact or x.tensor.is_complex():
        return None
    choices: dict[str, Callable[..., torch.Tensor]] = {
        "mask": lambda t: t[t != 0],
        "nonzero": lambda t: t.nonzero(),
        "unique": lambda t: t.unique(),
        "masked_select": lambda t: t.masked_select(t == t),
    }
    name = draw(st.sampled_from(sorted(choices)))
    return name, choices[name], True


def written(draw: Any, x: Value) -> Made | None:
    """Writes through views, which eager does in the memory of whatever else sees it."""
    rank = x.tensor.dim()
    if not rank or not x.tensor.numel() or torch._debug_has_internal_overlap(x.tensor):
        return None
    dim = draw(st.integers(-rank, rank - 1))
    place = draw(st.integers(0, x.tensor.shape[dim] - 1))
    choices: dict[str, Callable[..., Any]] = {
        "row": lambda t: t.select(dim, place).fill_(1),
        "rest": lambda t: t.narrow(dim, place, t.shape[dim] - place).zero_(),
        "mask": lambda t: t.masked_fill_(t == 0, 1),
        "index": lambda t: t.movedim(dim, 0).index_put_(
            (torch.tensor([place, 0]),), torch.ones((), dtype=t.dtype)
        ),
        "setitem": lambda t: t.__setitem__(t != 0, 1),
        "copy_": lambda t: t.copy_(t.flip(dim)),
        "step": lambda t: t[::2].zero_(),
        "other view": lambda t: t.flatten()[:1].fill_(1),
    }
    name = draw(st.sampled_from(sorted(choices)))

    def write(t: torch.Tensor) -> torch.Tensor:
        choices[name](t)
        return t

    return f"write {name}", write, x.exact


KINDS = (
    unary, reduction, view, view, view, cast, scalar, binary, binary, matmul, in_place,
    several, indexed, network, written, by_value,
)  # fmt: skip
# Without those that write: what autograd can differentiate whatever comes.
PURE = tuple(kind for kind in KINDS if kind not in (in_place, written, by_value))
