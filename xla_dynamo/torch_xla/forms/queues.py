"""Names of `torch_xla.utils.keyd_queue`: bounded queues that can be closed."""

import collections
import threading
from collections.abc import Hashable
from typing import Any


class QueueBase:
    """What a queue of threads needs: a bound, and its end for readers and for writers."""

    def __init__(self, maxsize: int = 1024) -> None:
        """Take how many items it holds."""
        self._most = maxsize
        self._changed = threading.Condition()
        self._close_read = self._close_write = False

    def max_size(self) -> int:
        """How many items it holds."""
        return self._most

    def close(self) -> None:
        """End it: no `put` or `get` waits any more, and what is put is dropped."""
        with self._changed:
            self._close_read = self._close_write = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Say that nothing more is put: `get` gives what is there, and then None."""
        with self._changed:
            self._close_write = True
            self._changed.notify_all()


class KeydQueue(QueueBase):
    """Items by keys: who gets one names its key."""

    def __init__(self, maxsize: int = 1024) -> None:
        """Take how many items it holds."""
        super().__init__(maxsize)
        self._items: dict[Hashable, Any] = {}
        self._wanted: collections.Counter[Hashable] = collections.Counter()

    def put(self, key: Hashable, item: Any) -> None:
        """Add an item; waits for room, unless somebody waits for this very key."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._close_read or len(self._items) < self._most or self._wanted[key]
            )
            if not self._close_read:
                self._items[key] = item
                self._changed.notify_all()

    def get(self, key: Hashable) -> Any:
        """Take the item of a key, and wait for it; None if it will not come."""
        with self._changed:
            self._wanted[key] += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: key in self._items or self._close_write)
            self._wanted[key] -= 1
            self._wanted += collections.Counter()  # forgets keys that nobody waits for
            item = self._items.pop(key, None)
            self._changed.notify_all()
            return item


class Queue(QueueBase):
    """Items in the order in which they come."""

    def __init__(self, maxsize: int = 1024) -> None:
        """Take how many items it holds."""
        super().__init__(maxsize)
        self._items: collections.deque[Any] = collections.deque()

    def put(self, item: Any) -> None:
        """Add an item; waits for room."""
        with self._changed:
            self._changed.wait_for(lambda: self._close_read or len(self._items) < self._most)
            if not self._close_read:
                self._items.append(item)
                self._changed.notify_all()

    def get(self) -> Any:
        """Take the oldest item, and wait for one; None if none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._close_write)
            item = self._items.popleft() if self._items else None
            self._changed.notify_all()
            return item
