"""Ask eager's own CPU kernels whether they refuse a call, with small tensors of the same dtypes.

Kernels check more than what traces a graph does: `addmm` of two dtypes, `silu` of integers, `clamp`
of bytes at 300. Which kernel takes what changes with each release of torch, so no list here says
it. The small call has other sizes and values than the program, which may be refused for themselves:
a refusal counts only if it speaks of dtypes and the same call passes with others, or if it is that
of a draw, whose parameters are numbers.
"""

import dataclasses
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from xla_dynamo.torch_private import (
    DisableAutocast,
    DisablePythonDispatcher,
    DisableTorchFunction,
    OpOverload,
    disable_current_modes,
    has_kernel,
    pytree,
    schema,
    suggest_memory_format,
)

# No size is larger. All sizes are cut alike, which keeps relations such as that of a weight and its
# input.
_LARGEST = 6
# Both fillings must be refused: zeros divide no integers, and ones may be no indices.
_FILLINGS = (0, 1)
# Of more tensors than these, all change their dtype at once.
_MOST_APART = 5
# Kernels that take their arguments' word for sizes and indices, or ask for multiples of something.
_TRUSTING = frozenset(
    {
        "_convert_weight_to_int4pack_for_cpu", "_embedding_bag", "_embedding_bag_forward_only",
        "_fft_c2r", "_int_mm", "_pack_padded_sequence_backward", "_pad_packed_sequence",
        "_rowwise_prune", "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm",
        "embedding_bag", "linalg_ldl_solve", "linalg_lu_solve", "lu_solve", "segment_reduce",
    }
)  # fmt: skip
# Draws that eager refuses for numbers they are given, and for no relation of sizes.
_DRAWS = frozenset(
    {
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial",
        "native_dropout", "normal", "normal_functional", "randint", "randint_like", "random",
        "uniform",
    }
)  # fmt: skip
# What every kernel of `full` takes.
_DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64,
        torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
        torch.int64,
    }
)  # fmt: skip
_SPEAKS_OF_DTYPES = re.compile(
    r"(?i)^(?!.*internal assert).*"
    r"(implemented|type|bool|complex|float|half|integ|support|overflow|zerodivision)"
)
# Integers that are neither sizes nor numbers of something.
_NO_SIZES = frozenset({"dim", "from", "to", "low", "high"})
# The most elements: `arange` makes as many as numbers say that are no sizes.
_MANY = 1 << 16


@dataclasses.dataclass(frozen=True)
class _Small:
    """A small tensor that is to be made; `format` is None for what is not channels last."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    format: torch.memory_format | None

    def filled(self, number: int) -> torch.Tensor:
        made = torch.full(self.shape, number, dtype=self.dtype)
        return made.contiguous(memory_format=self.format) if self.format else made


class _Unknown(Exception):
    """Small tensors cannot tell."""


_known: dict[Any, str | None] = {}
_MOST_KNOWN = 10_000


def can_be_asked(op: OpOverload) -> bool:
    """Whether running an operator with small tensors has no effect and no danger."""
    if op.namespace != "aten" or schema(op).is_mutable:
        return False
    name = op.overloadpacket.__name__
    # Views take every dtype, and `view.dtype` depends on sizes. Gradients take the word of indices.
    is_view = any(result.alias_info is not None for result in schema(op).returns)
    if is_view or name in _TRUSTING or name.endswith("_copy") or "backward" in name:
        return False
    return not has_kernel(op.name(), "CompositeImplicitAutograd")  # else those inside are asked


def refusal(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """What eager says when it refuses a call for its dtypes, or the parameters of a draw; or None.

    The operator is one that `can_be_asked`. Each call is asked once in a process.
    """
    arguments = schema(op).arguments
    try:
        small_args = [_small(a, of) for a, of in zip(args, arguments, strict=False)]
        named = {a.name: a for a in arguments}
        small_kwargs = {name: _small(a, named[name]) for name, a in kwargs.items()}
    except _Unknown:
        return None
    if op.overloadpacket.__name__ == "arange" and any(
        isinstance(x, int | float) and abs(x) > _MANY for x in small_args
    ):
        return None
    flat, spec = pytree.tree_flatten((small_args, small_kwargs))
    key = op, spec, tuple((type(x), repr(x)) for x in flat)
    if key not in _known:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        _known[key] = _ask(op, flat, spec)
    return _known[key]


def refusal_of_out(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """The same for a function of torch that writes into `out=`, whose dtype eager may refuse."""
    flat, spec = pytree.tree_flatten((list(args), dict(kwargs)))
    given, without = pytree.tree_flatten((list(args), {**kwargs, "out": None}))
    try:
        small, small_given = ([_small(x, None) for x in leaves] for leaves in (flat, given))
    except _Unknown:
        return None
    with _in_eager(draws=True):
        failures = [_failure(function, small, spec, filling) for filling in _FILLINGS]
        if None in failures or not any(
            _failure(function, small_given, without, filling) is None for filling in _FILLINGS
        ):
            return None
    return _told(failures[-1])


def _ask(op: OpOverload, flat: list[Any], spec: Any) -> str | None:
    with _in_eager(draws=torch.Tag.nondeterministic_seeded in op.tags):
        failures = [_failure(op, flat, spec, filling) for filling in _FILLINGS]
        if None in failures:
            return None
        if op.overloadpacket.__name__ in _DRAWS:
            return _told(failures[-1])
        # Of kernels of some dtypes alone, such as those of bytes of images, sizes may be the fault.
        of_dtypes = [error for error in failures if _SPEAKS_OF_DTYPES.search(str(error))]
        passes_with_others = of_dtypes and any(
            _failure(op, leaves, spec, filling) is None
            for leaves in _with_other_dtypes(flat)
            for filling in _FILLINGS
        )
    return _told(of_dtypes[0]) if passes_with_others else None


@contextmanager
def _in_eager(*, draws: bool) -> Iterator[None]:
    """Eager's own kernels run, in the midst of a trace.

    The generator is left as it was, and nobody is warned of the small calls.
    """
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng([], enabled=draws),
        torch.no_grad(),
        disable_current_modes(),
        DisablePythonDispatcher(),
        DisableTorchFunction(),
        DisableAutocast(),
    ):
        warnings.simplefilter("ignore")
        yield


def _failure(
    op: Callable[..., Any], leaves: Sequence[Any], spec: Any, filling: int
) -> Exception | None:
    """What a small call raises."""
    made = [x.filled(filling) if isinstance(x, _Small) else x for x in leaves]
    args, kwargs = pytree.tree_unflatten(made, spec)
    try:
        op(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _told(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _small(x: Any, argument: Any) -> Any:
    """An argument of the small call; raises _Unknown if there can be none.

    Sizes among the arguments are cut if the operator's schema tells which those are.
    """
    if isinstance(x, list | tuple):
        return [_small(item, argument) for item in x]
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.device.type != "cpu" or x.dtype not in _DTYPES:
            raise _Unknown
        shape = tuple(_cut(n) for n in x.shape)
        if math.prod(shape) > _MANY:  # of many dimensions
            raise _Unknown
        return _Small(shape, x.dtype, _format(x))
    is_size = (
        argument is not None and "int" in str(argument.real_type) and argument.name not in _NO_SIZES
    )
    if isinstance(x, torch.SymInt) or (type(x) is int and is_size):
        return _cut(x)
    if isinstance(x, torch.SymFloat | torch.SymBool) or (
        isinstance(x, torch.device) and x.type != "cpu"
    ):
        raise _Unknown
    return None if isinstance(x, torch.Generator) else x


def _format(x: torch.Tensor) -> torch.memory_format | None:
    """Channels last, or None; of a tensor of dynamic sizes None, since to ask would be a guard."""
    is_dynamic = any(isinstance(n, torch.SymInt) for n in (*x.shape, *x.stride()))
    if x.dim() != 4 or is_dynamic or suggest_memory_format(x) is not torch.channels_last:
        return None
    return torch.channels_last


def _cut(size: Any) -> int:
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return _LARGEST if hint is None else min(int(hint), _LARGEST)


def _with_other_dtypes(flat: list[Any]) -> Iterator[list[Any]]:
    """The same arguments in dtypes in which the call may pass."""
    tensors = {i: x.dtype for i, x in enumerate(flat) if isinstance(x, _Small)}
    count = len(tensors)
    counts = range(count, 0, -1) if count <= _MOST_APART else [count]
    subsets = (itertools.combinations(tensors, n) for n in counts)
    for several in itertools.chain.from_iterable(subsets):
        yield _converted(flat, dict.fromkeys(several, torch.float32))
    yield _converted(flat, {i: _USUAL.get(dtype, dtype) for i, dtype in tensors.items()})
    yield _converted(flat, dict.fromkeys(tensors, torch.int64))


# A dtype of the same kind that every kernel of that kind takes.
_USUAL = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32), torch.int64),
}


def _converted(flat: list[Any], dtypes: Mapping[int, torch.dtype]) -> list[Any]:
    """Tensors in the dtypes at their indices, real numbers, and float32 for other dtypes given."""
    made = list(flat)
    for i, x in enumerate(flat):
        if i in dtypes:
            made[i] = dataclasses.replace(x, dtype=dtypes[i])
        elif isinstance(x, complex):
            made[i] = x.real
        elif isinstance(x, torch.dtype):
            made[i] = torch.float32
    return made
