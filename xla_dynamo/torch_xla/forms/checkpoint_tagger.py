"""Names of `torch_xla.utils.checkpoint_tagger`: which checkpoints have names, and stay."""

import collections
import json
from collections.abc import Callable
from typing import Any


class CheckpointTagger:
    """Names of checkpoints, as "latest" and "best": one that loses its last name is removed."""

    def __init__(self, remover: Callable[[str], Any] | None = None) -> None:
        """Take the function that removes the checkpoint of a path; None to remove none.

        Raises:
            TypeError: it is no function.
        """
        if remover is not None and not callable(remover):
            raise TypeError(f"remover is {remover!r}: give a function of a path, or None")
        self._remove = remover
        self._tags: dict[str, str] = {}

    def tag(self, name: str, path: str) -> None:
        """Give a name to the checkpoint of a path, and take it from the one that had it."""
        old = self._tags.get(name)
        self._tags[name] = path
        if old is not None and self._remove and not collections.Counter(self._tags.values())[old]:
            self._remove(old)

    @property
    def tags(self) -> dict[str, str]:
        """The paths by their names."""
        return self._tags

    def save_to_json(self) -> str:
        """The names and paths, for `load_from_json`."""
        return json.dumps(self._tags)

    @classmethod
    def load_from_json(
        cls, str_json: str, remover: Callable[[str], Any] | None = None
    ) -> "CheckpointTagger":
        """A tagger with the names that `save_to_json` wrote."""
        found = cls(remover)
        for name, path in json.loads(str_json).items():
            found.tag(name, path)
        return found
