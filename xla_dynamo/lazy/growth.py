"""When a stream of operators that nobody ends is to be run, before it grows without bound.

A loop that is cut at the same line each time becomes the same program each time. So once there are
many operators, the next cut is where the last one was, if that line comes again.
"""

from xla_dynamo.lazy import modes, records
from xla_dynamo.lazy.user_lines import Place, place_of_caller
from xla_dynamo.process_state import kept

# Operators since a program ran: a step of a large model has some thousands.
MANY = 8192


class _Growth:
    def __init__(self) -> None:
        self.since = 0  # the count of records when a program ran last
        self.last_cut: Place | None = None


_growth = kept(_Growth)


def restart() -> None:
    """Count from now on."""
    _growth.since = records.count.made


def is_due() -> bool:
    """Whether what is pending should be computed now."""
    count = records.count.made - _growth.since
    if count <= MANY or modes.is_recording():  # a block is one program, however long
        return False
    place = place_of_caller()
    if count <= 2 * MANY and (place is None or place != (_growth.last_cut or place)):
        return False
    _growth.last_cut = place
    return True
