"""Write and read the files of a checkpoint, with a checksum for each shard in them."""

import io
import json
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from xla_dynamo.distributed_checkpoint.together import Together
from xla_dynamo.errors import CheckpointError

CHECKSUMS = "checksums.json"
# CRC-32 by file, offset and length.
Checksums: TypeAlias = dict[tuple[str, int, int], int]
# A file, an offset and a length in it, and its CRC-32.
Entry: TypeAlias = tuple[str, int, int, int]
_PART = 1 << 24  # bytes that are read at once


class CheckpointWriter(FileSystemWriter):
    """`FileSystemWriter`, and a file of checksums beside the shards.

    The file of metadata is written last: a folder without it is no checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str], thread_count: int = 1) -> None:
        """Take the folder, which is made, and how many threads write, each a file of its own."""
        # Nothing is copied ahead: torch would ask the device 'xla' for streams, which it lacks.
        super().__init__(path, thread_count=thread_count, per_thread_copy_ahead=0)

    def checksums_of(self, results: list[WriteResult]) -> list[Entry]:
        """The checksums of what this process has written."""
        return [
            (
                where.relative_path,
                where.offset,
                where.length,
                _checksum(self.path, where, result.index),
            )
            for result in results
            for where in (result.storage_data,)
        ]

    def finish_with(
        self, metadata: Metadata, results: list[list[WriteResult]], checksums: list[Entry]
    ) -> None:
        """Write the checksums of all processes, and then the metadata."""
        with open(pathlib.Path(self.path) / CHECKSUMS, "w") as file:
            json.dump(checksums, file)
            file.flush()
            os.fsync(file.fileno())
        super().finish(metadata, results)


class CheckpointReader(FileSystemReader):
    """`FileSystemReader` that checks all it reads before it changes anything.

    Checkpoints without a file of checksums are read, too. A shard is read once, however many shards
    of the destination take a part of it. Over several processes nothing changes in any before all
    have checked what they read.
    """

    def __init__(self, path: str | os.PathLike[str], together: Together) -> None:
        """Take the folder, and the processes that read it."""
        super().__init__(path)
        self._together = together

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of the checkpoint.

        Raises:
            CheckpointError: the folder has no file of metadata, or it is damaged.
        """
        try:
            return super().read_metadata(*args, **kwargs)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{self.path} is no complete checkpoint: it lacks the file of its metadata, "
                f"{error.filename}"
            ) from error
        except Exception as error:
            raise CheckpointError(
                f"the metadata of the checkpoint {self.path} is damaged: {error}"
            ) from error

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future:
        """Read what the items of a plan need.

        Raises:
            CheckpointError: a shard is missing or damaged; nothing was changed then.
        """
        wanted: dict[MetadataIndex, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(item.storage_index, []).append(item)
        self._together.each(f"the check of {self.path}", lambda: self._check_all(wanted))
        for index, items in wanted.items():
            if self.storage_data[index].transform_descriptors:
                super().read_data(LoadPlan(items), planner)  # torch undoes its own transforms
            else:
                _deliver(
                    b"".join(_parts(self.path, self.storage_data[index], index)), items, planner
                )
        done: Future = Future()
        done.set_result(None)
        return done

    def _check_all(self, wanted: Iterable[MetadataIndex]) -> None:
        checksums = _read_checksums(pathlib.Path(self.path) / CHECKSUMS)
        for index in wanted:
            self._check(index, checksums)

    def _check(self, index: MetadataIndex, checksums: Checksums | None) -> None:
        if index not in self.storage_data:
            raise CheckpointError(
                f"the metadata of the checkpoint {self.path} does not say where {_name(index)} is"
            )
        where = self.storage_data[index]
        value = _checksum(self.path, where, index)
        if checksums is None:
            return
        if checksums.get((where.relative_path, where.offset, where.length)) != value:
            raise CheckpointError(
                f"{_name(index)} is damaged in {_file_of(self.path, where)}: its checksum is not "
                f"the one in {CHECKSUMS}"
            )


def _deliver(data: bytes, items: Iterable[ReadItem], planner: LoadPlanner) -> None:
    """Hand a shard that was read to the items that need parts of it."""
    tensor: Any = None
    for item in items:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(data))
            continue
        if tensor is None:
            tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        part = tensor
        for dim, (offset, length) in enumerate(
            zip(item.storage_offsets, item.lengths, strict=True)
        ):
            part = part.narrow(dim, offset, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(part)
        planner.commit_tensor(item, target)


def _checksum(folder: Any, where: Any, index: MetadataIndex) -> int:
    """The CRC-32 of a shard's bytes in its file."""
    value = 0
    for part in _parts(folder, where, index):
        value = zlib.crc32(part, value)
    return value


def _parts(folder: Any, where: Any, index: MetadataIndex) -> Iterator[bytes]:
    """The bytes of a shard, as `torch.save` wrote them, a part after the other."""
    path, left = pathlib.Path(folder) / where.relative_path, where.length
    try:
        with open(path, "rb") as file:
            file.seek(where.offset)
            while left and (part := file.read(min(left, _PART))):
                left -= len(part)
                yield part
    except OSError as error:
        raise CheckpointError(f"{_name(index)} cannot be read from {path}: {error}") from error
    if left:
        raise CheckpointError(
            f"{_name(index)} is incomplete in {_file_of(folder, where)}: the file ends after "
            f"{where.length - left} of {where.length} bytes"
        )


def _read_checksums(path: pathlib.Path) -> Checksums | None:
    """The checksums of a checkpoint; None if it was written without."""
    try:
        entries = json.loads(path.read_text())
        return {(file, offset, length): value for file, offset, length, value in entries}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"the checksums {path} are damaged: {error}") from error


def _name(index: MetadataIndex) -> str:
    at = "" if index.offset is None else f" at {tuple(index.offset)}"
    return f"the shard{at} of {index.fqn!r}" if any(index.offset or ()) else f"{index.fqn!r}"


def _file_of(folder: Any, where: Any) -> str:
    return f"{pathlib.Path(folder) / where.relative_path}, at byte {where.offset}"
