"""The debug switches of the passes: XLA_DYNAMO_PASSES=verify,dump=/folder,limit=N,skip=NAME."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator

from xla_dynamo.process_state import kept
from xla_dynamo.switches.ours import PASSES

VARIABLE = PASSES.name
# Counts passes, and leaves none out.
UNLIMITED = sys.maxsize


@dataclasses.dataclass(frozen=True, slots=True)
class Switches:
    """What is done beside running the passes, or left undone.

    Attributes:
        verify: whether MLIR verifies the module behind each pass.
        dump: the folder that modules are written to, before and after each pass; None for none.
        limit: how many runs of passes there may be, over all modules: those after it are left out.
            None for no limit. Passes that keep eager's numbers are not counted, and always run.
        skip: the names of passes that are left out.
    """

    verify: bool = False
    dump: str | None = None
    limit: int | None = None
    skip: frozenset[str] = frozenset()

    @property
    def leaves_out(self) -> bool:
        """Whether passes are left out, by their number or by their name."""
        return self.limit is not None or bool(self.skip)

    @classmethod
    def parse(cls, text: str) -> "Switches":
        """Read the switches as the environment variable has them.

        Raises:
            OptionError: a switch is unknown, or lacks its value.
        """
        verify, dump, limit, skip = False, None, None, set[str]()
        for each in filter(None, map(str.strip, PASSES.parse(text).split(","))):
            key, _, value = each.partition("=")
            if key == "verify":
                verify = True
            elif key == "dump":
                dump = value
            elif key == "limit":
                limit = int(value)
            else:
                skip.add(value)
        return cls(verify, dump, limit, frozenset(skip))


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A run of a pass that the limit counts.

    Attributes:
        name: the pass.
        module: the number of the module, from 1, in the order in which passes began.
        platform: what the module is for.
    """

    name: str
    module: int
    platform: str


class Session:
    """Switches, and the modules and the runs of passes since they were set.

    Attributes:
        switches: the switches.
        runs: the runs of passes so far, if there is a limit.
    """

    def __init__(self, switches: Switches) -> None:
        """Begin to count."""
        self.switches = switches
        self.runs: list[Run] = []
        self._modules = 0
        self._lock = threading.Lock()

    def next_module(self) -> int:
        """The number of a module whose passes begin."""
        with self._lock:
            self._modules += 1
            return self._modules

    def allows(self, name: str, module: int, platform: str) -> bool:
        """Whether the limit allows another run of a pass, which is counted then."""
        limit = self.switches.limit
        if limit is None:
            return True
        with self._lock:
            if len(self.runs) >= limit:
                return False
            self.runs.append(Run(name, module, platform))
            return True


_lock = threading.Lock()


class _Sessions:
    """The session that a block has set, and that of the environment variable as it was read."""

    def __init__(self) -> None:
        self.set: Session | None = None
        self.of_environment = ("", Session(Switches()))


_sessions = kept(_Sessions)


def session() -> Session:
    """The session of the switches that hold now.

    Raises:
        OptionError: the environment variable is wrong.
    """
    if (chosen := _sessions.set) is not None:
        return chosen
    text, known = _sessions.of_environment
    if (now := PASSES.get()) == text:
        return known
    with _lock:
        text, known = _sessions.of_environment
        if now != text:
            known = Session(Switches.parse(now))
            _sessions.of_environment = (now, known)
    return known


@contextlib.contextmanager
def switched(switches: Switches) -> Iterator[Session]:
    """Have these switches, and not the environment's, in all threads until the block ends."""
    before, made = _sessions.set, Session(switches)
    _sessions.set = made
    try:
        yield made
    finally:
        _sessions.set = before
