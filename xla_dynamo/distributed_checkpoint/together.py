"""What the processes of a job do together for a checkpoint; a process that is alone, by itself.

The order of what they do together is the same in all of them, whichever thread does it: it goes
over a channel of its own to the job's coordinator.
"""

import pickle
from collections.abc import Callable
from typing import TypeVar

from xla_dynamo.errors import CheckpointError
from xla_dynamo.runtime.processes import job

T = TypeVar("T")

# What fails in one process and is to be told in all.
_FAILURES = (CheckpointError, OSError, RuntimeError, ValueError)


class Together:
    """The processes that write and read a checkpoint: those of the job, or one.

    Attributes:
        rank, size: which of how many this one is.
    """

    def __init__(self, name: str) -> None:
        """Join the others, if there are any; the name tells this channel from others."""
        joined = job.joined()
        self._channel = joined.channel(name) if joined is not None else None
        self.rank, self.size = (joined.seat.rank, joined.seat.size) if joined else (0, 1)

    def each(self, about: str, act: Callable[[], T]) -> list[T]:
        """What each process returns, by rank, when all have come.

        Args:
            about: what they do, for people.
            act: what this one does; its result is pickled.

        Raises:
            CheckpointError: it failed in another process.
            ProcessError: a process is gone, silent or late.
        """
        if self._channel is None:
            return [act()]
        try:
            mine: tuple[bool, object] = True, act()
        except _FAILURES as error:
            failure: Exception | None = error
            mine = False, f"{error}"
        else:
            failure = None
        sent = self._channel.gather(about, pickle.dumps(mine))
        if failure is not None:
            raise failure
        answers = [pickle.loads(one) for one in sent]
        for rank, (is_good, answer) in enumerate(answers):
            if not is_good:
                raise CheckpointError(f"in process {rank} of {self.size}: {answer}")
        return [answer for _, answer in answers]

    def first(self, about: str, act: Callable[[], T]) -> T:
        """What the first process returns, in all; the others wait. Raises what `each` does."""
        return self.each(about, act if not self.rank else lambda: None)[0]  # type: ignore[return-value]
