"""Folders of checkpoints that appear whole or not at all, whenever a process is killed.

A checkpoint is written into a folder of another name, which is renamed when all of it is on the
disk. What a killed process has left behind is removed later. A process that is alive holds locks,
which end with it: what is locked is not left behind.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

_METADATA = ".metadata"  # torch writes it last
# Prefixes of folders that are no checkpoints: one that is being written, an earlier checkpoint of a
# step until the new one is in its place, and one that is being removed.
_SAVING, _REPLACED, _REMOVED = ".saving-", ".replaced-", ".removed-"


class StepFolders:
    """The checkpoints of a run, each in a folder with the number of its step."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Take the folder of all, which is made."""
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, the one that was saved first at the front."""
        found = []
        for folder in self.path.iterdir():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if folder.name.isdecimal() and folder.name == str(int(folder.name)):
                    found.append(((folder / _METADATA).stat().st_mtime_ns, int(folder.name)))
        return [step for _, step in sorted(found)]

    def of(self, step: int) -> pathlib.Path:
        """The folder of a step."""
        return self.path / str(step)

    @contextlib.contextmanager
    def writing(self, step: int) -> Iterator[pathlib.Path]:
        """A new folder, which becomes that of the step at the end of the block.

        An earlier checkpoint of the step is replaced then. After an exception the new folder is
        removed.
        """
        folder = self._hidden(_SAVING, step)
        with contextlib.ExitStack() as stack:
            with self._alone():  # nobody cleans before it is locked
                folder.mkdir()
                stack.enter_context(_locked(folder))
            try:
                yield folder
                _sync(folder)
                self._publish(folder, step)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(OSError):
                    self.clean()  # an interrupt may have come between two renames
                raise

    def remove(self, step: int) -> None:
        """Remove a checkpoint: its name first, so that no half of it is taken for a whole."""
        with self._alone():
            removed = self._hidden(_REMOVED, step)
            os.rename(self.of(step), removed)
        shutil.rmtree(removed)

    def clean(self) -> None:
        """Remove what killed processes have left, and put back what they had begun to replace."""
        if not os.access(self.path, os.W_OK):
            return  # who may only read here leaves it to others
        with self._alone():
            for folder in list(self.path.iterdir()):
                if folder.name.startswith(_REPLACED):
                    self._put_back(folder)
                elif folder.name.startswith((_SAVING, _REMOVED)):
                    with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(folder):
                        shutil.rmtree(folder)

    def _put_back(self, replaced: pathlib.Path) -> None:
        """Undo the first of the two renames of `_publish`, or end what follows the second."""
        target = self.of(int(replaced.name.split("-")[1]))
        if target.exists():
            shutil.rmtree(replaced)
        else:
            os.rename(replaced, target)

    def _publish(self, folder: pathlib.Path, step: int) -> None:
        target = self.of(step)
        with self._alone():
            replaced = self._hidden(_REPLACED, step) if target.exists() else None
            if replaced is not None:
                os.rename(target, replaced)
            os.rename(folder, target)
            _sync(self.path)
            if replaced is not None:
                shutil.rmtree(replaced)

    def _hidden(self, prefix: str, step: int) -> pathlib.Path:
        return self.path / f"{prefix}{step}-{uuid.uuid4().hex[:12]}"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process, and no other thread, renames or cleans meanwhile."""
        with open(self.path / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a folder, which the system takes from a process that ends.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _sync(folder: pathlib.Path) -> None:
    """Let the names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
