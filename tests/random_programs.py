"""Random small programs: graphs of random operators on random tensors, some of them aliases.

`python -m tests.random_programs --seconds 3600` runs as many as there is time for, of a seed that
it prints, and stops at the first that does not give what eager gives, made as small as it can be.
"""

import argparse
import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.comparison import compare
from tests.padding import harmful_padding
from tests.random_operators import DTYPES, INTEGERS, KINDS, PURE, SMALL, Value, binary, matmul

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
            tensor = drawn if dtype in (*INTEGERS, *SMALL, torch.bool) else drawn / 4
            found.append(LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](tensor.to(dtype)))
    return found


@dataclasses.dataclass
class Step:
    """One operation on the values (inputs and results so far) at some places."""

    name: str
    function: Callable[..., torch.Tensor] = dataclasses.field(repr=False)
    places: tuple[int, ...]


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


Program = tuple[list[torch.Tensor], list[Step], list[int]]


@st.composite
def programs(draw: Any, kinds: tuple[Callable[..., Any], ...] = KINDS) -> Program:
    """Inputs, steps over the list of values so far, and the places of the outputs."""
    tensors = draw(inputs())
    values = [Value(t) for t in copies(tensors)]
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(kinds))
        count = 2 if kind in (binary, matmul) else 1
        last = len(values) - 1
        places = tuple(last - draw(st.integers(0, last)) for _ in range(count))
        made = kind(draw, *[values[p] for p in places])
        if made is None:
            continue
        name, function, exact = made
        try:
            result = function(*[values[p].tensor for p in places])
        except (
            RuntimeError,
            IndexError,
            ValueError,
            TypeError,
        ):  # eager refuses: subtraction of bools, say
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


@dataclasses.dataclass
class Tally:
    """How many programs ran, and how many torch itself could not compile."""

    run: int = 0
    refused: int = 0


def values_of(program: Program, args: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs, and what every step makes."""
    values = list(args)
    for step in program[1]:
        values.append(step.function(*[values[p] for p in step.places]))
    return values


def run_program(program: Program, args: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The outputs of a program on its inputs."""
    values = values_of(program, args)
    return tuple(values[place] for place in program[2])


def values_and_inputs(program: Program, backend: str | None, dynamic: bool | None) -> Any:
    """The outputs, and the inputs, which may have changed."""
    args = copies(program[0])
    return _through(backend, dynamic, lambda *args: run_program(program, args))(*args), args


def gradients(program: Program, backend: str | None, dynamic: bool | None) -> Any:
    """The gradients of the outputs, added up, in the inputs."""
    run = _through(backend, dynamic, lambda *args: run_program(program, args))
    return _gradients(run, program, program[0])


def _gradients(run: Callable[..., Any], program: Program, tensors: list[torch.Tensor]) -> Any:
    args = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    outputs = run(*args)
    real = [torch.view_as_real(o.resolve_conj()) if o.is_complex() else o for o in outputs]
    losses = [o.double().square().sum() for o in real if o.requires_grad]
    if not losses:
        return []
    wanted = [a for a in args if a.requires_grad]
    found = torch.autograd.grad(sum(losses), wanted, allow_unused=True)  # type: ignore[arg-type]
    # A gradient in float64 is not more precise than the steps that it comes through.
    made = values_of(program, copies(tensors))
    single = any(v.dtype in (torch.float32, torch.complex64) for v in made)
    return [g.float() if single and g is not None else g for g in found]


def values_at_sizes(program: Program, backend: str | None, dynamic: bool | None) -> Any:
    """The outputs and the inputs at several sizes, where two bounds are compiled for."""
    run = _in_buckets(program, backend, dynamic)
    with harmful_padding():
        return [(run(*args), args) for args in _at_sizes(program)]


def gradients_at_sizes(program: Program, backend: str | None, dynamic: bool | None) -> Any:
    """Likewise, the gradients of the outputs, added up, in the inputs."""
    run = _in_buckets(program, backend, dynamic)
    with harmful_padding():
        return [_gradients(run, program, args) for args in _at_sizes(program)]


def _in_buckets(program: Program, backend: str | None, dynamic: bool | None) -> Callable[..., Any]:
    options = {"buckets": [6, 12]} if backend == "openxla" else None
    return _through(backend, dynamic, lambda *args: run_program(program, args), options)


def _at_sizes(program: Program) -> Iterator[list[torch.Tensor]]:
    """Inputs of several sizes: a size becomes another one, wherever it stands.

    The first call is compiled as it is, the others are in buckets. What eager refuses is left out.
    """
    changing = max((n for t in program[0] for n in t.shape if n > 1), default=2)
    for size in (changing, 5, 6, 7, 12):
        try:
            run_program(program, _resized(program[0], changing, size))
        except (RuntimeError, IndexError, ValueError):
            continue
        yield _resized(program[0], changing, size)


def _resized(tensors: list[torch.Tensor], old: int, new: int) -> list[torch.Tensor]:
    """Copies in which a dimension of size `old` has another one; elements are repeated."""
    found = []
    for t in copies(tensors):
        for dim, size in enumerate(t.shape):
            if size == old:
                t = t.index_select(dim, torch.arange(new) % old)
        found.append(t)
    return found


def _through(
    backend: str | None, dynamic: bool | None, run: Callable[..., Any], options: Any = None
) -> Any:
    if backend is None:
        return run
    torch._dynamo.reset()
    return torch.compile(run, backend=backend, fullgraph=True, dynamic=dynamic, options=options)


def check(
    program: Program,
    what: Callable[..., Any] = values_and_inputs,
    *,
    dynamic: bool | None = None,
    tally: Tally | None = None,
) -> None:
    """Raise unless a compiled program gives what it gives in eager."""
    tally = tally or Tally()
    tally.run += 1
    try:
        expected = what(program, None, None)
    except RuntimeError as error:
        if not any(words in str(error) for words in _NO_DERIVATIVE):
            raise
        return
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        try:
            compare(expected, what(program, "openxla", dynamic), values=True)
        except Exception:
            try:
                compare(expected, what(program, "aot_eager", dynamic), values=True)
            except Exception:
                # Guards on sizes that depend on values are too much for AOTAutograd itself.
                tally.refused += 1
                return
            raise


# What eager says that has none: floor_divide, say, and where of a real and a complex number.
_NO_DERIVATIVE = (
    "derivative for",
    "Expected isFloatingType(grad",
    "on a bool tensor is not supported",  # its formula negates the input: atan2
    "returned an invalid gradient",  # of a source that is larger than the index: scatter_add
)
# What is compared, of which kinds of programs, at dynamic sizes or not.
MODES: dict[str, tuple[Any, ...]] = {
    "values": (KINDS, values_and_inputs, None),
    "dynamic sizes": (KINDS, values_and_inputs, True),
    "buckets": (KINDS, values_at_sizes, True),
    "gradients": (PURE, gradients, None),
    "gradients in buckets": (PURE, gradients_at_sizes, True),
}


def explore(mode: str, examples: int, first: int) -> Tally:
    """Check so many programs of a seed; the first that differs is raised, made small."""
    kinds, what, dynamic = MODES[mode]
    tally = Tally()

    @seed(first)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(kinds))
    def some(program: Program) -> None:
        check(program, what, dynamic=dynamic, tally=tally)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some come once in a process: not the same twice
        some()
    return tally


def main() -> None:
    """Run programs until the time is over, or one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)  # what torch refuses, it logs at length
    every, number, end = Tally(), options.seed, time.time() + options.seconds
    while time.time() < end:
        for mode in MODES:
            tally = explore(mode, 50, number)
            every = Tally(every.run + tally.run, every.refused + tally.refused)
        print(f"seeds {options.seed} to {number}: {every}; none differs", flush=True)
        number += 1


if __name__ == "__main__":
    main()
