"""Which form a matrix product takes: as measured here, else as on other processors of the family.

A product that was measured on this machine (`measurements`) has its own answer. Others have that of
the most similar one in the table of the processor's family, which `python -m bench.products
--write` writes. On a family that has no table nothing is known: bench/RESULTS.md has figures.
"""

import functools
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from xla_dynamo.kernels import measurements
from xla_dynamo.runtime.cpu.features import family, processor

TABLE = pathlib.Path(__file__).with_name("product_choices.json")
# Forms: XLA's own product, and plans whose threads share the rows or the columns. Among the forms
# with a packed weight `XLA` stands for none: the weight is read as it is.
XLA, ROWS, COLUMNS = "xla", "rows", "columns"
_KIND = "product"
FORMS = (XLA, ROWS, COLUMNS)
_MANY = 64  # rows that are shared where nothing was measured


class Sizes(NamedTuple):
    """The product [stack, rows, inner] @ [stack, inner, columns] in a dtype.

    Attributes:
        dtype: of both factors.
        stack: how many products.
        rows: of the first factor.
        inner: its columns.
        columns: of the second factor.
        transpose_x: whether the first factor comes as [stack, inner, rows].
        transpose_y: whether the second one comes as [stack, columns, inner].
    """

    dtype: torch.dtype
    stack: int
    rows: int
    inner: int
    columns: int
    transpose_x: bool = False
    transpose_y: bool = True

    @classmethod
    def of_question(cls, question: str) -> "Sizes | None":
        """The sizes that a question is about; None if it is about no product."""
        kind, _, rest = question.partition(" ")
        words = rest.split(" ")
        if kind != _KIND or len(words) != len(cls._fields):
            return None
        dtype, *sizes, turn_x, turn_y = words
        turns = turn_x == "True", turn_y == "True"
        stack, rows, inner, columns = map(int, sizes)
        return cls(getattr(torch, dtype), stack, rows, inner, columns, *turns)

    @property
    def question(self) -> str:
        """What is asked of `measurements`."""
        return " ".join([_KIND, *(str(x).removeprefix("torch.") for x in self)])


class Choice(NamedTuple):
    """The fastest forms of a product.

    Attributes:
        plain: where both factors come with a call.
        packed: where the second one is a weight that may be packed.
    """

    plain: str
    packed: str


def are_measured() -> bool:
    """Whether the family of this processor has a table."""
    return family() in _tables()


def choice(sizes: Sizes) -> Choice | None:
    """The forms of a product; None where nothing like it was measured."""
    found = measurements.find(sizes.question)
    if found is not None and _is_choice(found.answer):
        return Choice(**found.answer)
    return shipped(sizes)


def assumed(sizes: Sizes) -> Choice:
    """The forms of a product that is a plan, or a call of oneDNN, whether they are known or not."""
    return choice(sizes) or Choice(XLA, ROWS if sizes.rows >= _MANY else COLUMNS)


def shipped(sizes: Sizes) -> Choice | None:
    """The forms of the most similar product in the table of this family; None without one."""
    return _nearest(family(), str(sizes.dtype).removeprefix("torch."), sizes[1:5])


@functools.lru_cache(4096)
def _nearest(name: str, dtype: str, numbers: tuple[int, ...]) -> Choice | None:
    known = _tables().get(name, {}).get(dtype, ())
    if not known:
        return None
    wanted = _place(numbers)
    nearest = min(known, key=lambda row: math.dist(_place(row[:4]), wanted))
    return Choice(*nearest[4:])


def fingerprint() -> str:
    """A text that is another one where another choice may be made, as of layouts of weights."""
    return f"{processor()} {_text()} {measurements.fingerprint()}"


def _place(numbers: Any) -> list[float]:
    """Where sizes lie, so that those that differ by the same factors are as far from each other."""
    return [math.log2(max(n, 1)) for n in numbers]


def _is_choice(answer: Mapping[str, str]) -> bool:
    return answer.keys() == {*Choice._fields} and {*answer.values()} <= {*FORMS}


@functools.cache
def _text() -> str:
    return TABLE.read_text()


@functools.cache
def _tables() -> dict[str, dict[str, list[list[Any]]]]:
    """By family and dtype: stack, rows, inner size and columns, and the forms of a `Choice`."""
    return json.loads(_text())
