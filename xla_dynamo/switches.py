"""Environment variables of which a dump tells: each is declared once, and read through here.

The other variables that the package reads are read where they matter.
"""

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


CPU_NUM_DEVICES: Switch[str | None] = _declare(
    "CPU_NUM_DEVICES",
    "a number",
    None,
    "as how many devices the CPU appears; XLA_FLAGS may say it, too",
    "when the first program is compiled",
    str,
)
PASSES = _declare(
    "XLA_DYNAMO_PASSES",
    "a list, with commas, of verify, dump=FOLDER, limit=NUMBER and skip=NAME",
    "",
    "passes are verified, their modules written, or passes left out",
    "at each compilation",
    str,
)
PROGRESS = _declare(
    "XLA_DYNAMO_PROGRESS",
    "0, off or false; else it is on",
    True,
    "a line on the terminal tells what is compiled for longer than two seconds",
    "at each compilation",
    lambda text: text not in ("0", "off", "false"),
)
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
