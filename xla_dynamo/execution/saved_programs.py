"""The programs of one graph with dynamic sizes in the disk cache, by bucket or by sizes."""

import dataclasses
import io
import logging
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from xla_dynamo.errors import StorageError
from xla_dynamo.graphs.dynamic_sizes import NotBounded
from xla_dynamo.lowerings.passes import manager
from xla_dynamo.programs.lower_bounded import BoundedProgram
from xla_dynamo.programs.program import Constant, Donated, Program
from xla_dynamo.programs.storage import read_any_program, write_program
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.runtime.saved_executables import digest

log = logging.getLogger("xla_dynamo")
KIND = "program"
_REFUSED = b"refused: "
P = TypeVar("P", Program, BoundedProgram)


class SavedPrograms:
    """What a graph was lowered to at some sizes, which later processes need not lower again."""

    def __init__(self, folder: CacheFolder | None, graph: str, passes: Hashable = None) -> None:
        """Take the folder, or None to save nothing, and the key of the graph.

        `passes` is the state of the passes (`manager.state`) that the key is for. A graph with
        dynamic sizes lives on when users register others, with which its programs are not those of
        its key.
        """
        self._folder, self._graph, self._passes = folder, graph, passes

    def _name(self, key: Any) -> str:
        return digest([self._graph, repr(key)])

    def find_or_make(self, key: Any, kind: type[P], make: Callable[[], P]) -> P:
        """The program of a bucket, or of sizes; if it is not there, what `make` makes is kept.

        Args:
            key: the bucket or the sizes; None for what is not to be saved.
            kind: `Program`, or `BoundedProgram`.
            make: lowers the graph.

        Raises:
            NotBounded: the graph cannot be lowered for this bucket.
        """
        if self._folder is None or key is None or self._passes != manager.state():
            return make()
        program = self._find(self._folder, key, kind)
        if program is None:
            try:
                program = make()
            except NotBounded as refusal:
                self._folder.write(KIND, self._name(key), _REFUSED + str(refusal).encode())
                raise
            if self._passes == manager.state():
                write_entry(self._folder, self._name(key), program)
        return program

    def _find(self, folder: CacheFolder, key: Any, kind: type[P]) -> P | None:
        """The program of a bucket, or of sizes; None if it is not there.

        Raises:
            NotBounded: the graph was not lowered for this bucket, since that is not proved.
        """
        found = read_entry(folder, self._name(key))
        if not isinstance(found, kind):
            return None
        metrics.increment("PersistentCacheProgramHit")
        return found


def read_entry(folder: CacheFolder, name: str) -> Program | BoundedProgram | None:
    """The program of an entry; None if it is not there, or cannot be read.

    Raises:
        NotBounded: the entry says that a bucket is not proved.
    """
    data = folder.read(KIND, name)
    if data is None:
        return None
    if data.startswith(_REFUSED):
        raise NotBounded(data.removeprefix(_REFUSED).decode())
    try:
        return read_any_program(io.BytesIO(data))
    except StorageError as error:
        log.warning("disk cache: a program cannot be read: %s", error)
        return None


def write_entry(folder: CacheFolder, name: str, program: Program | BoundedProgram) -> None:
    """Write a program, if it says all that a call does."""
    whole = program.program if isinstance(program, BoundedProgram) else program
    if not is_whole(whole):
        return
    # What stands in the user's sources may have moved when it is read.
    bare = dataclasses.replace(whole, largest=None)
    if isinstance(program, BoundedProgram):
        program = dataclasses.replace(program, program=bare)
    else:
        program = bare
    data = io.BytesIO()
    try:
        write_program(program, data)
    except StorageError as error:
        log.info("disk cache: no place for a program: %s", error)
        return
    folder.write(KIND, name, data.getvalue())


def is_whole(program: Program) -> bool:
    """Whether a program says all that a call does.

    A tensor that the user's code holds, and may change, would be one of this process.
    """
    held = any(not constant.is_literal for constant in program.of(Constant))
    return not (held or program.effects or program.mutations or program.of(Donated))
