"""Names of `torch_xla.utils.cached_dataset`: a data set whose samples are kept in files."""

import io
import json
import os
import posixpath
from typing import Any

import torch

import xla_dynamo
from xla_dynamo.torch_xla.forms import files

_METADATA = "METADATA"


class CachedDataset(torch.utils.data.Dataset[Any]):
    """A data set of another one's samples, each saved to a file when it is first asked for."""

    def __init__(
        self, data_set: Any, path: str, max_files_per_folder: int = 1000, compress: bool = True
    ) -> None:
        """Take the data set and the folder.

        Args:
            data_set: the data set; None if the folder has all samples already.
            path: the folder, which may begin with gs://.
            max_files_per_folder: how many files a folder in it holds. The folder's own number
                counts where there is no data set; so does its `compress`.
            compress: whether files have torch's newer form, a zip file.

        Raises:
            FileNotFoundError: there is no data set, and the folder is none of this kind.
        """
        self._data_set, self._path = data_set, path
        metadata = posixpath.join(path, _METADATA)
        if data_set is None:
            known = json.loads(files.read(metadata))
        else:
            known = {
                "count": len(data_set),
                "compress": compress,
                "max_files_per_folder": max_files_per_folder,
            }
            if xla_dynamo.is_master_ordinal(local=not files.is_gcs_path(path)):
                files.generic_write(json.dumps(known), metadata, makedirs=True)
        self._count, self._compress = known["count"], known["compress"]
        self._most = known["max_files_per_folder"]
        self._depth = len(self._digits(self._count))

    def __len__(self) -> int:
        """How many samples there are."""
        return self._count

    def __getitem__(self, index: int) -> Any:
        """A sample, from its file if there is one.

        Raises:
            IndexError: there is no such sample.
            FileNotFoundError: there is no file of it, and no data set.
        """
        if not 0 <= index < self._count:
            raise IndexError(f"there is no sample {index}: there are {self._count}")
        path = self._file(index)
        try:
            return torch.load(io.BytesIO(files.read(path)), weights_only=False)
        except FileNotFoundError:
            if self._data_set is None:
                raise FileNotFoundError(
                    f"sample {index} is not in {self._path}, and no data set is given to make it "
                    "from: give CachedDataset the data set, or call its warmup() before"
                ) from None
        data = self._data_set[index]
        written = io.BytesIO()
        torch.save(data, written, _use_new_zipfile_serialization=self._compress)
        # Another process may read the file, or write it, too.
        unfinished = f"{path}.{os.getpid()}"
        files.generic_write(written.getvalue(), unfinished, makedirs=True)
        files.rename(unfinished, path)
        return data

    def warmup(self) -> None:
        """Save every sample that is not saved yet."""
        for index in range(self._count):
            self[index]

    def _digits(self, number: int) -> list[int]:
        """A number by its digits, where a digit is below `max_files_per_folder`."""
        found = [number % self._most]
        while number := number // self._most:
            found.insert(0, number % self._most)
        return found

    def _file(self, index: int) -> str:
        """Where a sample is saved, as PyTorch/XLA does it."""
        digits = self._digits(index)
        folders = [0] * (self._depth - len(digits)) + digits[:-1]
        return posixpath.join(self._path, *map(str, folders), f"{index}.pt")
