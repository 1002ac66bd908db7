"""`bisect_passes(fn, args)`: which run of a pass makes a result differ from eager's?"""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.events import log_event
from xla_dynamo.lowerings.passes.bisection import Bisection, bisect
from xla_dynamo.options import Options
from xla_dynamo.reports.explain import compiled_apart
from xla_dynamo.torch_private import pytree, uncompiled

# The switches hold for the process, so one bisection runs at a time.
_lock = threading.Lock()
# Results of other kinds, such as texts, are not computed by programs.
_COMPARED = torch.Tensor | bool | int | float | complex | None


def bisect_passes(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool | None = False,
    options: Mapping[str, Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Bisection:
    """Find the first run of a pass that makes compiled results differ from eager's.

    The function is compiled with the first n runs of passes over all of its modules, for several n,
    and its results are compared with eager's. Where results need gradients, those of their sum are
    compared too, at the arguments and at the parameters of a module. If the results are wrong with
    no counted pass, the passes that keep eager's numbers are left out one by one.

    Each call gets a copy of the arguments, and of the function if it is a module, and begins at the
    same seed. Copies have no marks of shardings: mark tensors inside of the function. Random
    operators draw eager's numbers under `options={"rng": "torch"}` alone. Other threads must not
    compile meanwhile, since the passes are limited for the whole process.

    Args:
        fn: a function or a module, or one that `torch.compile` returned.
        args: its positional arguments.
        kwargs: its keyword arguments.
        dynamic: as for `torch.compile`.
        options: as for `torch.compile(..., backend="openxla", options=...)`.
        rtol: the relative tolerance; by default that of `torch.testing.assert_close`.
        atol: the absolute tolerance, which is given or left out with the relative one.

    Returns:
        What was found: print it.

    Raises:
        OptionError: see `Options`.
        TypeError: `fn` cannot be called.
        ValueError: one tolerance is given without the other.
    """
    if not callable(fn):
        raise TypeError(f"bisect_passes needs a function or a module, not {type(fn).__name__}")
    if (rtol is None) != (atol is None):
        raise ValueError("bisect_passes takes both rtol and atol, or neither")
    function = _Function(
        uncompiled(fn), args, kwargs or {}, dynamic, Options.parse(options), (rtol, atol)
    )
    with _lock:
        return function.bisect()


class _Function:
    """A function whose results are compared: see `bisect_passes`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        dynamic: bool | None,
        options: Options,
        tolerances: tuple[float | None, float | None],
    ) -> None:
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._dynamic, self._options, self._tolerances = dynamic, options, tolerances
        self._seed = torch.initial_seed()

    def bisect(self) -> Bisection:
        """Compare with eager, for several numbers of runs of passes."""
        with torch.random.fork_rng():
            self._expected = self._results(lambda fn: fn)
            return bisect(lambda: self._difference(self._results(self._compiled)))

    def _compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return compiled_apart(fn, self._dynamic, self._options, log_event)

    def _results(self, compiled: Callable[[Any], Callable[..., Any]]) -> list[Any]:
        """The results, the gradients, and the changed arguments of a call on copies."""
        fn = copy.deepcopy(self._fn) if isinstance(self._fn, torch.nn.Module) else self._fn
        args, kwargs = copy.deepcopy(
            pytree.tree_map(_as_leaf, (tuple(self._args), dict(self._kwargs)))
        )
        torch.manual_seed(self._seed)
        results = pytree.tree_leaves(compiled(fn)(*args, **kwargs))
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if isinstance(fn, torch.nn.Module):
            given += [*fn.parameters(), *fn.buffers()]
        wanted = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(x) for x in wanted])
        gradients = [x.grad for x in given if x.is_leaf]
        return [_detached(x) for x in (*results, *gradients, *given) if isinstance(x, _COMPARED)]

    def _difference(self, results: Sequence[Any]) -> str | None:
        rtol, atol = self._tolerances
        try:
            torch.testing.assert_close(
                list(results), self._expected, rtol=rtol, atol=atol, equal_nan=True
            )
        except (AssertionError, TypeError, ValueError) as error:
            return str(error)
        return None


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _as_leaf(value: Any) -> Any:
    """A tensor that `copy.deepcopy` takes, which refuses those with a history."""
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        return value.detach().requires_grad_()
    return value
