"""Trees of Python's containers around leaves, as data: flattened and rebuilt without torch."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Key: TypeAlias = str | int | bool | float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A container, or a leaf.

    Attributes:
        kind: "leaf", "tuple", "list", "dict", "namedtuple", or "object": of another class, which is
            a dict by the names of its fields wherever the program is called.
        items: the trees inside.
        keys: of a dict, its keys; of a namedtuple or an object, the names of the fields.
        name: of a namedtuple or an object, the name of its class.
    """

    kind: str
    items: "tuple[Tree, ...]" = ()
    keys: tuple[Key, ...] = ()
    name: str = ""

    def leaves(self) -> int:
        """How many leaves it has."""
        return 1 if self.kind == "leaf" else sum(item.leaves() for item in self.items)

    def flatten(self, given: Any, path: str) -> list[Any]:
        """The leaves of a value of this form.

        Raises:
            TypeError: the value has another form; the message says where.
        """
        if self.kind == "leaf":
            return [given]
        parts = self._parts(given, path)
        return [
            leaf
            for (at, item), part in zip(self._labeled(path), parts, strict=True)
            for leaf in item.flatten(part, at)
        ]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value of this form with these leaves."""
        given = iter(leaves)
        return self._built(given)

    def flatten_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call, if this is the pair of its positional and keyword arguments.

        Raises:
            TypeError: the call has another form.
        """
        positional, named = self.items
        return positional.flatten(tuple(args), "args") + named.flatten(dict(kwargs), "kwargs")

    def path(self, number: int) -> str:
        """The words for a leaf of the pair of positional and keyword arguments, by its number."""
        paths: list[str] = []
        for item, label in zip(self.items, ("args", "kwargs"), strict=True):
            item._collect(paths, label)
        return paths[number]

    @classmethod
    def from_json(cls, given: Any) -> "Tree":
        """Read what `dataclasses.asdict` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        items = tuple(map(cls.from_json, given["items"]))
        kind, keys, name = given["kind"], tuple(given["keys"]), given["name"]
        if kind not in ("leaf", "tuple", "list", "dict", "namedtuple", "object"):
            raise ValueError(f"a tree of kind {kind!r}")
        if len(keys) != (len(items) if kind in ("dict", "namedtuple", "object") else 0):
            raise ValueError("a tree has keys of another number than items")
        if not isinstance(name, str) or any(not isinstance(k, Key) for k in keys):
            raise TypeError("a tree has keys that are none")
        if kind == "namedtuple" and not all(isinstance(k, str) for k in (name, *keys)):
            raise TypeError("the fields of a namedtuple have no names")
        return cls(kind, items, keys, name)

    def _parts(self, given: Any, path: str) -> list[Any]:
        if self.kind in ("tuple", "list", "namedtuple"):
            wanted = list if self.kind == "list" else tuple
            if not isinstance(given, wanted) or len(given) != len(self.items):
                raise TypeError(f"{path} must be {self._words()}, not {_words(given)}")
            return list(given)
        if self.kind == "object" and not isinstance(given, Mapping):
            if not all(hasattr(given, str(key)) for key in self.keys):
                raise TypeError(f"{path} must be {self._words()}, not {_words(given)}")
            return [getattr(given, str(key)) for key in self.keys]
        if not isinstance(given, Mapping) or set(given) != set(self.keys):
            raise TypeError(f"{path} must be {self._words()}, not {_words(given)}")
        return [given[key] for key in self.keys]

    def _words(self) -> str:
        if self.kind in ("tuple", "list", "namedtuple"):
            return f"a {self.kind} of {len(self.items)}"
        return f"a dict with the keys {list(self.keys)}"

    def _labeled(self, path: str) -> Iterator[tuple[str, "Tree"]]:
        labels = self.keys or range(len(self.items))
        for label, item in zip(labels, self.items, strict=True):
            yield f"{path}[{label!r}]", item

    def _collect(self, paths: list[str], path: str) -> None:
        if self.kind == "leaf":
            paths.append(path)
        for at, item in self._labeled(path):
            item._collect(paths, at)

    def _built(self, leaves: Iterator[Any]) -> Any:
        if self.kind == "leaf":
            return next(leaves)
        items = [item._built(leaves) for item in self.items]
        if self.kind == "tuple":
            return tuple(items)
        if self.kind == "list":
            return items
        if self.kind == "namedtuple":
            return collections.namedtuple(self.name, self.keys)(*items)  # type: ignore[arg-type, misc]
        return dict(zip(self.keys, items, strict=True))


LEAF = Tree("leaf")


def _words(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"one with the keys {list(given)}"
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {len(given)}"
    return f"{type(given).__name__}"
