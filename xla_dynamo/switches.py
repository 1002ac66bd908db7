"""The environment variables that the package reads: each declared once, and read through here."""

import dataclasses
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from xla_dynamo.errors import OptionError

T = TypeVar("T")
TABLE: list["Switch[object]"] = []


@dataclasses.dataclass(frozen=True, slots=True)
class Switch(Generic[T]):
    """An environment variable.

    Attributes:
        name: what it is called.
        kind: what a value is, in words: "folder", "number", ...
        default: the value without it.
        meaning: what it does.
        read: when it is read.
        parse: makes a value of the text, and raises ValueError for a wrong one.
    """

    name: str
    kind: str
    default: T
    meaning: str
    read: str
    parse: Callable[[str], T]

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
        except ValueError as error:
            raise OptionError(
                f"the environment variable {self.name} is {text!r}: it takes {self.kind}"
            ) from error

    def text(self) -> str | None:
        """The text of the environment, which may be empty; None if it is not set."""
        return os.environ.get(self.name)


def _declare(
    name: str, kind: str, default: T, meaning: str, read: str, parse: Callable[[str], T]
) -> Switch[T]:
    made = Switch(name, kind, default, meaning, read, parse)
    TABLE.append(made)  # type: ignore[arg-type]
    return made


def given() -> dict[str, str]:
    """The variables of the table that are set, with their texts."""
    return {s.name: os.environ[s.name] for s in TABLE if s.name in os.environ}


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


DUMP = _declare(
    "XLA_DYNAMO_DUMP",
    "a folder",
    "",
    "each program that is compiled leaves a folder of its own there: its graphs, its modules "
    "behind each pass, its inputs, and a `run.py` that runs it alone",
    "at each compilation",
    str,
)
DUMP_MEGABYTES = _declare(
    "XLA_DYNAMO_DUMP_MEGABYTES",
    "a number of MiB",
    1024,
    "how much of a program's inputs a dump saves; random values take the place of the others",
    "at the first call of a dumped program",
    _count,
)
