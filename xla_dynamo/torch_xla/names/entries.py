"""What stands for a name of PyTorch/XLA: entries of the tables in `names`."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias


class Entry(NamedTuple):
    """What stands for a name.

    Attributes:
        target: the module and the name that stand for it, as in "xla_dynamo.spmd:Mesh", or a
            module alone; "" if nothing does.
        note: how that differs; why nothing stands for it, and what to do instead.
    """

    target: str
    note: str = ""


Names: TypeAlias = Mapping[str, Entry]


def same(module: str, names: str) -> dict[str, Entry]:
    """Entries of names that a module of ours has too, and that mean the same there."""
    return {name: Entry(f"{module}:{name}") for name in names.split()}


def other(**targets: str) -> dict[str, Entry]:
    """Entries of names that are called otherwise here."""
    return {name: Entry(target) for name, target in targets.items()}


def different(note: str, module: str, names: str) -> dict[str, Entry]:
    """Entries of names of a module that differ in one way."""
    return {name: Entry(f"{module}:{name}", note) for name in names.split()}


def missing(reason: str, names: str) -> dict[str, Entry]:
    """Entries of names that nothing stands for, for one reason."""
    return {name: Entry("", reason) for name in names.split()}
