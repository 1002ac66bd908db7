"""One environment variable: its name, what it takes, and the value that the process has of it."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from xla_dynamo.errors import OptionError

T = TypeVar("T")
TABLE: list["Switch[object]"] = []

# Whose the variables are, in the order of the documentation.
OURS, PYTORCH_XLA = "xla_dynamo", "PyTorch/XLA"
LAUNCHERS, LIBRARIES, SYSTEM = "launchers", "libraries", "the system"
OWNERS = (OURS, PYTORCH_XLA, LAUNCHERS, LIBRARIES, SYSTEM)


@dataclasses.dataclass(frozen=True, slots=True)
class Switch(Generic[T]):
    """An environment variable.

    Attributes:
        name: what it is called.
        kind: what a value is, in words: "a folder", "a positive integer", ...
        default: the value without it.
        meaning: what it does.
        when: when it is read.
        parse: makes a value of the text, and raises ValueError for a wrong one, or an OptionError
            that says what is wrong with it.
        owner: whose it is, one of `OWNERS`.
        otherwise: what holds without it, in words, where the default does not tell.
        shapes_programs: whether programs depend on it, so that a dump tells of it.
        is_read_here: whether this package reads it, or a library alone.
    """

    name: str
    kind: str
    default: T
    meaning: str
    when: str
    parse: Callable[[str], T]
    owner: str = OURS
    otherwise: str = ""
    shapes_programs: bool = False
    is_read_here: bool = True

    def text(self) -> str | None:
        """The text that it is set to now; None where it is not set."""
        return os.environ.get(self.name)

    def get(self) -> T:
        """The value that the environment gives now, else the default.

        Raises:
            OptionError: the text is no value of this kind.
        """
        text = os.environ.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except OptionError:  # which tells more
            raise
        except ValueError as error:
            raise OptionError(
                f"the environment variable {self.name} must be {self.kind}, not {text!r}"
            ) from error

    def put(self, text: str | None) -> None:
        """Set it for this process and for those that it starts; None unsets it."""
        if text is None:
            os.environ.pop(self.name, None)
        else:
            os.environ[self.name] = text

    @contextlib.contextmanager
    def replaced(self, text: str) -> Iterator[None]:
        """Have it set to a text in this block, for processes that are started within."""
        before = self.text()
        self.put(text)
        try:
            yield
        finally:
            self.put(before)


def declare(switch: Switch[T]) -> Switch[T]:
    """Put a variable into the table."""
    TABLE.append(switch)  # type: ignore[arg-type]
    return switch


def given() -> dict[str, str]:
    """The variables that programs depend on and that are set, with their texts."""
    return {s.name: os.environ[s.name] for s in TABLE if s.shapes_programs and s.name in os.environ}


def those_with_prefix(prefix: str) -> dict[str, str]:
    """The variables that are set and begin so, with their texts; declared or not."""
    return {name: text for name, text in sorted(os.environ.items()) if name.startswith(prefix)}


def child_environment(**texts: str) -> dict[str, str]:
    """The environment of this process, with these variables set, for a process that it starts."""
    return {**os.environ, **texts}


# --- what texts may be ---------------------------------------------------------------------------

FLAG = "1, true, yes or on, or 0, false, no, off or empty"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def flag(text: str) -> bool:
    """Parse `FLAG`, in capitals or not."""
    lower = text.strip().lower()
    if lower not in (*_YES, *_NO):
        raise ValueError(text)
    return lower in _YES


def count(text: str) -> int:
    """Parse an integer from 0 on, in decimal digits."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def positive(text: str) -> int:
    """Parse an integer from 1 on."""
    if not (number := count(text)):
        raise ValueError(text)
    return number
