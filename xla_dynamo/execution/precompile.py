"""`precompile(fn, shapes=...)`: compile for sizes before they come, several executables at once."""

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import OptionError
from xla_dynamo.graphs.dynamic_sizes import NotBounded
from xla_dynamo.torch_private import maybe_mark_dynamic, pytree, uncompiled
from xla_dynamo.variants.meanwhile import compiling_ahead

# The arguments of one call: by position, or by name.
Arguments: TypeAlias = Sequence[Any] | Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Precompiled:
    """What `precompile` did.

    Attributes:
        executables: how many were compiled.
        seconds: how long it took.
    """

    executables: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.executables} executables in {self.seconds:.2f} s"


@torch.compiler.disable
def precompile(fn: Callable[..., Any], *, shapes: Iterable[Arguments]) -> Precompiled:
    """Compile a function for the sizes to come, so that no later call with them waits for it.

        fast = torch.compile(model, dynamic=True, backend="openxla", options={"buckets": "auto"})
        with torch.no_grad():
            xla_dynamo.precompile(
                fast, shapes=[[((1, n), torch.int64)] for n in (8, 16, 32, 64, 128)]
            )

    Dynamo traces the function for one call after another. The executables that the calls need are
    then compiled in the background, as many at a time as there are cores. Compiled graphs are
    not run: the parameters, buffers and caches that they would change stay as they are, and their
    results are zeros. Python code around them does run, and so do operators that are left to torch.

    A call has to be like those to come in all that Dynamo guards: call `precompile` under
    `torch.no_grad()`, `torch.autocast` and the like, if they are. Of a function with gradients, the
    forward is compiled; its backward is at its first call.

    Args:
        fn: a function or a module that `torch.compile` returned, or `module.compile()` compiled, or
            one that calls such.
        shapes: the arguments of each call, in a sequence, or by name in a mapping. An argument is
            a shape, as in `(8, 128)`, for a tensor of torch's default dtype; a shape and a dtype,
            as in `((8, 128), torch.int64)`; or an example, passed as it is, of which tensors are
            copied. In examples, also in lists and mappings of them, a tensor of the device "meta"
            stands for one of its shape, dtype and strides. Tensors that are made are zeros on
            torch's default device. Sizes that differ between the calls are left dynamic, as by
            `torch._dynamo.maybe_mark_dynamic`.

    Returns:
        How many executables were compiled, and how long it took.

    Raises:
        OptionError: `fn` is not compiled, or `shapes` has something else than arguments of calls.
        CompileError, LoweringError, UnsupportedOperator: see `errors`; what compiling raised first.
    """
    start = time.perf_counter()
    calls = [_call(number, arguments) for number, arguments in enumerate(shapes)]
    _leave_dynamic([pytree.tree_leaves(call) for call in calls])
    _check_compiled(fn)
    with compiling_ahead(only_looks=True):
        for args, kwargs in calls:
            fn(*args, **kwargs)
    count = 0
    while True:
        with compiling_ahead() as begun:
            for args, kwargs in calls:
                fn(*args, **kwargs)
        refused = _wait(begun)
        count += len(set(begun)) - refused
        if not refused:  # else what was to be bounded is compiled for each size
            return Precompiled(count, time.perf_counter() - start)


def _wait(begun: Sequence["concurrent.futures.Future[Any]"]) -> int:
    """Wait for what was begun, and raise the first failure; returns how many were refused."""
    concurrent.futures.wait(begun)
    errors = [error for future in dict.fromkeys(begun) if (error := future.exception())]
    failures = [error for error in errors if not isinstance(error, NotBounded)]
    if failures:
        if len(failures) > 1:
            failures[0].add_note(f"{len(failures) - 1} more executables could not be compiled")
        raise failures[0]
    return len(errors)


def _call(number: int, arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, by position and by name."""
    if isinstance(arguments, Mapping):
        return (), {str(name): _argument(given) for name, given in arguments.items()}
    if isinstance(arguments, Sequence) and not isinstance(arguments, str):
        if not any(isinstance(a, int) and not isinstance(a, bool) for a in arguments):
            return tuple(map(_argument, arguments)), {}
        hint = ": a single argument of this shape is written [(...)]"
    else:
        hint = ""
    raise OptionError(
        f"shapes[{number}] must be the arguments of a call, in a list or by name in a dict, not "
        f"{arguments!r}{hint}"
    )


def _argument(given: Any) -> Any:
    if _is_shape(given):
        return torch.zeros(tuple(given))
    if isinstance(given, Sequence) and len(given) == 2:
        shape, dtype = given
        if isinstance(dtype, torch.dtype) and _is_shape(shape):
            return torch.zeros(tuple(shape), dtype=dtype)
    return pytree.tree_map_only(torch.Tensor, _like, given)


def _is_shape(given: Any) -> bool:
    """Whether an argument is a shape, and no empty list."""
    if not isinstance(given, tuple | list) or (isinstance(given, list) and not given):
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in given)


def _like(example: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor; zeros for one of the device "meta"."""
    if example.device.type == "meta":
        made = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype)
        return made.zero_().requires_grad_(example.requires_grad)
    return example.detach().clone().requires_grad_(example.requires_grad)


def _leave_dynamic(calls: Sequence[Sequence[Any]]) -> None:
    """Mark the sizes that differ between calls, for Dynamo to leave dynamic from the first on."""
    by_index: dict[Any, list[torch.Tensor]] = collections.defaultdict(list)
    for leaves in calls:
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                by_index[len(leaves), index, leaf.dim()].append(leaf)
    for tensors in by_index.values():
        sizes = zip(*(tensor.shape for tensor in tensors), strict=True)
        dims = [dim for dim, given in enumerate(sizes) if len(set(given)) > 1]
        for tensor in tensors if dims else ():
            maybe_mark_dynamic(tensor, dims)


def _check_compiled(fn: Any) -> None:
    """Raise OptionError for a module of which nothing is compiled."""
    modules = fn.modules() if isinstance(fn, torch.nn.Module) else [fn]
    is_compiled = any(uncompiled(each) is not each for each in modules)
    if isinstance(fn, torch.nn.Module) and not is_compiled:
        raise OptionError(
            f"precompile needs something compiled, and nothing in {type(fn).__name__} is: pass "
            'torch.compile(model, backend="openxla")'
        )
