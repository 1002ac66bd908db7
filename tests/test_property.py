"""Random small programs give what eager gives: values, dtypes, shapes and strides."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.comparison import compare

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)


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
        return self.tensor.dtype.is_floating_point

    @property
    def is_bool(self) -> bool:
        return self.tensor.dtype is torch.bool


# --- inputs ------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "sliced": lambda t: torch.stack([t, t], -1)[..., 0],
    "expanded": lambda t: t[:1].expand(t.shape) if t.dim() and len(t) else t,
    "offset": lambda t: (
        torch.cat([t.flatten()[:1], t.flatten()])[-t.numel() :].view(t.shape) if t.numel() else t
    ),
}


@st.composite
def inputs(draw: Any) -> list[torch.Tensor]:
    """Up to three tensors; some of them twice, or views of one another."""
    found: list[torch.Tensor] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["new", "new", "new", "again", "view"])) if found else "new"
        if kind == "again":
            found.append(draw(st.sampled_from(found)))
        elif kind == "view":
            base = draw(st.sampled_from(found))
            found.append(
                base.t() if base.dim() == 2 else base.flatten()[1:] if base.dim() else base
            )
        else:
            shape = draw(st.lists(st.integers(0, 4), max_size=3))
            dtype = draw(st.sampled_from(DTYPES))
            generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
            drawn = torch.randint(-8, 9, shape, generator=generator)
            tensor = drawn / 4 if dtype.is_floating_point else drawn
            found.append(LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](tensor.to(dtype)))
    return found


# --- steps -------------------------------------------------------------------------------------
# Each kind draws an operation for its operands: a name, a function, and whether its result is
# exact; or None where it does not apply.

Made = tuple[str, Callable[..., torch.Tensor], bool]


@dataclasses.dataclass
class Step:
    """One operation on the values (inputs and results so far) at some places."""

    name: str
    function: Callable[..., torch.Tensor] = dataclasses.field(repr=False)
    places: tuple[int, ...]


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


KINDS = (unary, reduction, view, view, cast, scalar, binary, binary, matmul, in_place)


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that share memory with each other as the given ones do, and not with those."""
    found: dict[Any, torch.Tensor] = {}
    for t in tensors:
        storage = t.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        found.setdefault(storage._cdata, whole.clone())
    again: dict[int, torch.Tensor] = {}
    for t in tensors:
        if id(t) not in again:
            memory = found[t.untyped_storage()._cdata].untyped_storage()
            place = (t.storage_offset(), t.size(), t.stride())
            again[id(t)] = torch.empty(0, dtype=t.dtype).set_(memory, *place)
    return [again[id(t)] for t in tensors]


@st.composite
def programs(draw: Any) -> tuple[list[torch.Tensor], list[Step], list[int]]:
    """Inputs, steps over the list of values so far, and the places of the outputs."""
    tensors = draw(inputs())
    values = [Value(t) for t in copies(tensors)]
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(KINDS))
        count = 2 if kind in (binary, matmul) else 1
        last = len(values) - 1
        places = tuple(last - draw(st.integers(0, last)) for _ in range(count))
        made = kind(draw, *[values[p] for p in places])
        if made is None:
            continue
        name, function, exact = made
        try:
            result = function(*[values[p].tensor for p in places])
        except (RuntimeError, IndexError):  # eager refuses: subtraction of bools, say
            continue
        if result.numel() > 4096 or (result.is_floating_point() and not _tame(result)):
            continue
        steps.append(Step(name, function, places))
        values.append(Value(result, exact))
    last = len(values) - 1
    more = draw(st.lists(st.integers(0, last), max_size=2))
    return tensors, steps, [last, *more]


def _tame(x: torch.Tensor) -> bool:
    return x.numel() == 0 or not x.isfinite().any() or x[x.isfinite()].abs().max() < 1e6


def check(program: tuple[list[torch.Tensor], list[Step], list[int]]) -> None:
    tensors, steps, outputs = program

    def run(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(args)
        for step in steps:
            values.append(step.function(*[values[p] for p in step.places]))
        return tuple(values[place] for place in outputs)

    def through(backend: str) -> tuple[Any, list[torch.Tensor]]:
        torch._dynamo.reset()
        args = copies(tensors)
        return torch.compile(run, backend=backend, fullgraph=True)(*args), args

    changed = copies(tensors)
    expected = (run(*changed), changed)
    try:
        compare(expected, through("openxla"), values=True)
    except Exception:
        try:
            compare(expected, through("aot_eager"), values=True)
        except Exception:
            return  # inputs that overlap and change are too much for AOTAutograd itself
        raise


COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=40, derandomize=True, database=None, **COMMON)
@given(programs())
def test_random_programs(program):
    check(program)


@pytest.mark.slow
@settings(max_examples=2000, derandomize=True, database=None, **COMMON)
@given(programs())
def test_many_random_programs(program):
    check(program)
