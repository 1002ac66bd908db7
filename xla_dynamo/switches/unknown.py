"""Find variables that nobody reads: misspelt ones, of which a warning tells, and PyTorch/XLA's."""

import difflib
import os
import sys
import warnings

from xla_dynamo.process_state import kept
from xla_dynamo.switches.others import RANK, SLURM_PROCID
from xla_dynamo.switches.pytorch_xla import IGNORED
from xla_dynamo.switches.switch import TABLE

# The variables of the package's own tests, which its processes inherit.
_OF_TESTS = "XLA_DYNAMO_TESTS_"
_PREFIX = "XLADYNAMO"


class _Warned:
    def __init__(self) -> None:
        self.is_done = False


_warned = kept(_Warned)


def unknown() -> dict[str, str]:
    """The variables that are set and seem meant for this package, but are none of its variables.

    Returns:
        Their names, each with the nearest valid name; "" where none is near.
    """
    valid = {s.name for s in TABLE}
    mine = [name for name in valid if _letters(name).startswith(_PREFIX)]
    found = {}
    for name in sorted(os.environ):
        is_meant = _letters(name).startswith(_PREFIX) and not name.startswith(_OF_TESTS)
        if is_meant and name not in valid:
            close = difflib.get_close_matches(name.upper(), mine, n=1)
            found[name] = close[0] if close else ""
    return found


def ignored() -> dict[str, str]:
    """Variables of PyTorch/XLA that are set and that nothing reads here, and what to do instead."""
    return {name: instead for name, instead in IGNORED.items() if name in os.environ}


def warn_of_unknown() -> None:
    """Warn once of variables that are misspelt.

    Processes that multiprocessing has started, and all but the first of a job, have the variables
    of another process, which warns itself.
    """
    if _warned.is_done:
        return
    _warned.is_done = True
    processes = sys.modules.get("multiprocessing.process")  # else nobody has started this one so
    if processes is not None and processes.parent_process() is not None:
        return
    if any(rank.get() not in ("", "0") for rank in (RANK, SLURM_PROCID)):
        return
    for name, near in unknown().items():
        hint = f"did you mean {near}?" if near else "`xla-dynamo doctor` shows those that are"
        warnings.warn(
            f"the environment variable {name} is none of xla_dynamo's, and does nothing: {hint}",
            stacklevel=2,
        )


def _letters(name: str) -> str:
    """A name by which another case or other underscores are the same."""
    return name.upper().replace("_", "")
