"""How work is shared among the threads of XLA's pool."""

import itertools
import os

from xla_dynamo.switches.others import NPROC, PJRT_NPROC


def threads() -> int:
    """How many threads the pool has: one for each core that this process may use.

    As XLA does, it takes another number from the environment, from PJRT_NPROC or NPROC.
    """
    given = (NPROC if PJRT_NPROC.text() is None else PJRT_NPROC).get()
    if given.isdigit() and int(given):
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ranges(count: int, number: int) -> list[range]:
    """`count` things as a number of ranges of about the same size; fewer, if there are fewer."""
    ends = [count * i // number for i in range(number + 1)]
    return [range(a, b) for a, b in itertools.pairwise(ends) if a < b]
