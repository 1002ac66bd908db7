"""Find the user's line that is running, for messages, profiles, and the debug summary."""

import os
import sys
from types import CodeType
from typing import NamedTuple

from xla_dynamo.graphs.source_lines import NOT_THE_USERS

_is_users: dict[str, bool] = {}
_LIBRARY = os.path.dirname(os.__file__) + os.sep


def is_users(file: str) -> bool:
    """Whether a file is the user's: not torch's, not this package's, not of Python's library."""
    of_python = file.startswith(_LIBRARY) and "-packages" not in file
    return not of_python and not file.startswith((*NOT_THE_USERS, "<"))


class Place(NamedTuple):
    """A line, as its code object and number: what is cheap to take."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line} in {self.code.co_name}"

    def stack_trace(self) -> str:
        """In the form that FX keeps with a node."""
        import linecache

        text = linecache.getline(self.code.co_filename, self.line).strip()
        where = f'  File "{self.code.co_filename}", line {self.line}, in {self.code.co_name}\n'
        return where + f"    {text}\n"


def place_of_caller() -> Place | None:
    """The innermost line that is neither torch's nor of this package; None in a backward pass."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        users = _is_users.get(code.co_filename)
        if users is None:
            users = _is_users[code.co_filename] = is_users(code.co_filename)
        if users:
            return Place(code, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
