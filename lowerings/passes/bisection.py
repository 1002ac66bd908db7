"""Which run of a pass makes a result wrong? Compile with the first n runs, for several n."""

import dataclasses
from collections.abc import Callable

from xla_dynamo.lowerings.passes.switches import UNLIMITED, Run, Switches, switched
from xla_dynamo.lowerings.passes.table import PASSES


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


def bisect(attempt: Callable[[], str | None]) -> Bisection:
    """Try all passes, none, and then halve what lies between.

    The passes are limited for the whole process: no other thread may compile meanwhile.

    Args:
        attempt: compiles and runs, and returns how the results differ from eager's; None if they
            agree. What it raises counts as a difference.
    """
    return _Search(attempt).run()


class _Search:
    """A bisection that goes on."""

    def __init__(self, attempt: Callable[[], str | None]) -> None:
        self._attempt = attempt
        self._trials: list[Trial] = []

    def run(self) -> Bisection:
        runs, difference = self._try(UNLIMITED)
        total = len(runs)
        if difference is None:
            return self._found(None, None, total, None)
        if self._try(0)[1] is not None:
            return self._found(self._numeric(), None, total, difference)
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
        with switched(Switches(verify=True, limit=limit, skip=skipped)) as session:
            try:
                difference = self._attempt()
            except Exception as error:  # a pass may do anything to a module
                difference = f"{type(error).__name__}: {error}"
        counted = None if limit == UNLIMITED else limit
        self._trials.append(Trial(counted, skip, difference))
        return session.runs, difference
