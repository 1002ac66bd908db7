"""A table of values that go when the objects that own them die."""

import threading
import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# For those who put and remove. Whatever garbage is collected meanwhile asks for no table's lock.
_writing = threading.RLock()


class WeakTable(Generic[K, V]):
    """Values by keys, such as addresses, each for as long as its owner lives.

    Owners die in any thread and at any line, since garbage is collected anywhere. So what then runs
    waits for no lock, which another thread at such a line may hold. By then a key may belong to a
    new owner, whose value stays. A value that is put just when another owner of its key dies may be
    lost, but no value outlives its owner. None is lost where the key is the owner's own address,
    which nobody else has until the owner is forgotten.

    Attributes:
        values: the values, by key, to be looked up; only the table's methods change it.
        made: how many values it was given.
    """

    __slots__ = ("__weakref__", "_gone", "_owners", "made", "values")

    def __init__(self, gone: Callable[[], None] | None = None) -> None:
        """Take a method, held weakly, that is called when values have gone."""
        self.values: dict[K, V] = {}
        self.made = 0
        self._owners: dict[K, weakref.ref[Any]] = {}
        self._gone = weakref.WeakMethod(gone) if gone else lambda: None

    def put(self, key: K, owner: Any, value: V) -> None:
        """Keep a value for as long as an owner lives."""
        this = weakref.ref(self)

        def forget(_: Any, remove: Callable[..., None] = _remove_dead_weakref) -> None:
            # The name of a module may be gone where the interpreter ends.
            if (table := this()) is not None:
                remove(table._owners, key)  # at once, and only a dead owner's
                if key not in table._owners:
                    table._drop(key)

        with _writing:
            self._owners[key] = weakref.ref(owner, forget)
            self.values[key] = value
            self.made += 1

    def put_alone(self, key: K, owner: Any, value: V) -> None:
        """The same, in the place of all that was kept for the owner."""
        with _writing:
            for old, reference in self._owners.copy().items():
                if reference() is owner:
                    self.remove(old)
            self.put(key, owner, value)

    def owner(self, key: K) -> Any:
        """The owner of a key's value; None without one."""
        reference = self._owners.get(key)
        return None if reference is None else reference()

    def remove(self, key: K) -> None:
        """Forget a key's value, if it has one."""
        with _writing:
            self._owners.pop(key, None)
            self._drop(key)

    def _drop(self, key: K) -> None:
        self.values.pop(key, None)
        if (gone := self._gone()) is not None:
            gone()
