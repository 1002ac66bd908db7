"""`bisect_passes(fn, args)`: which run of a pass makes a result differ from eager's?"""

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.events import log_event
from xla_dynamo.lowerings.passes.switches import UNLIMITED, Run, Switches, switched
from xla_dynamo.lowerings.passes.table import PASSES
from xla_dynamo.options import Options
from xla_dynamo.reports.explain import compiled_apart
from xla_dynamo.torch_private import pytree, uncompiled

# The switches hold for the process, so one bisection runs at a time.
_lock = threading.Lock()
# Results of other kinds, such as texts, are not computed by programs.
_COMPARED = torch.Tensor | bool | int | float | complex | None


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A compilation with some of the passes.

    Attributes:
        limit: how many runs of passes there were; None for all.
        skipped: the pass that was left out besides.
        difference: how the results differ from eager's, or what the compilation raised; None if
            they agree.
    """

    limit: int | None
    skipped: str | None
    difference: str | None

    def __str__(self) -> str:
        limit = "all passes" if self.limit is None else f"limit={self.limit}"
        skipped = f",skip={self.skipped}" if self.skipped else ""
        return f"{limit}{skipped}: {'wrong' if self.difference else 'right'}"


@dataclasses.dataclass(frozen=True, slots=True)
class Bisection:
    """What `bisect_passes` has found; printed, it says so in words.

    Attributes:
        guilty: the name of the pass without which the results are eager's; None if there is none.
        run: the first run of that pass that makes the results wrong; None where it is a pass that
            the limit does not count.
        number: which of the counted runs that is, from 1; None likewise.
        total: how many runs of passes are counted when all run.
        difference: how the results differ from eager's with all passes; None if they agree.
        trials: all compilations, in their order.
    """

    guilty: str | None
    run: Run | None
    number: int | None
    total: int
    difference: str | None
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        tried = "".join(f"\n  {trial}" for trial in self.trials)
        if self.difference is None:
            return f"the results are eager's with all {self.total} runs of passes{tried}"
        told = self.difference.strip().replace("\n", "\n  ")
        if self.guilty is None:
            return (
                "the results are wrong without any pass that can be left out: look at the rules of "
                f"the operators, and at XLA\n  {told}{tried}"
            )
        where = ""
        if self.run is not None:
            where = (
                f", run {self.number} of {self.total}, over module {self.run.module} "
                f"(XLA_DYNAMO_PASSES=limit={self.number})"
            )
        return f"the pass {self.guilty} makes the results wrong{where}\n  {told}{tried}"


@torch.compiler.disable
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
    search = _Search(
        uncompiled(fn), args, kwargs or {}, dynamic, Options.parse(options), (rtol, atol)
    )
    with _lock:
        return search.run()


class _Search:
    """A bisection that goes on: see `bisect_passes`."""

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
        self._trials: list[Trial] = []
        self._seed = torch.initial_seed()

    def run(self) -> Bisection:
        """Try all passes, none, and then halve what lies between."""
        with torch.random.fork_rng():
            self._expected = self._results(lambda fn: fn)
            runs, difference = self._try(UNLIMITED)
            total = len(runs)
            if difference is None:
                return self._found(None, None, total, None)
            if self._try(0)[1] is not None:
                name = self._numeric()
                return self._found(name, None, total, difference)
            right, wrong = 0, total
            while wrong - right > 1:
                middle = (right + wrong) // 2
                some, differs = self._try(middle)
                if differs is None:
                    right = middle
                else:
                    runs, wrong = some, middle
            return self._found(runs[wrong - 1], wrong, total, difference)

    def _found(
        self, guilty: Run | str | None, number: int | None, total: int, difference: str | None
    ) -> Bisection:
        name = guilty.name if isinstance(guilty, Run) else guilty
        run = guilty if isinstance(guilty, Run) else None
        return Bisection(name, run, number, total, difference, tuple(self._trials))

    def _numeric(self) -> str | None:
        """The first pass that the limit does not count without which the results are right."""
        for each in PASSES:
            if each.keeps_numbers and self._try(0, each.name)[1] is None:
                return each.name
        return None

    def _try(self, limit: int, skip: str | None = None) -> tuple[list[Run], str | None]:
        """Compile and run with some passes; the runs that were counted, and the difference."""
        skipped = frozenset() if skip is None else frozenset({skip})
        difference = None
        with switched(Switches(verify=True, limit=limit, skip=skipped)) as session:
            try:
                results = self._results(self._compiled)
            except Exception as error:  # a pass may do anything to a module
                difference = f"{type(error).__name__}: {error}"
            else:
                difference = self._difference(results)
        counted = None if limit == UNLIMITED else limit
        self._trials.append(Trial(counted, skip, difference))
        return session.runs, difference

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
