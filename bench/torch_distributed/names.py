"""Load torch's test files with the names of another device and another backend in them.

torch's tests name "cuda" and "nccl" in their text. Here that text has "xla" in both places, and
nothing else is changed: neither a test nor what it asserts.
"""

import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

# Text of torch, and what stands there instead. Environment variables, classes and arguments that
# have the old names in them keep these.
RENAMED = (
    (r"torch\.cuda\.nccl\.version\(\)", "(99, 0, 0)"),  # of NCCL's versions any will do
    (r"is_nccl_available", "is_available"),
    (r"== dist\.Backend\.NCCL", '== "xla"'),  # not in lists of what profilers know
    (r"(?<!import )torch\.cuda\.(?!amp|nccl|graph)", "torch.xla."),
    (r"\.cuda\(", ".xla("),
    (r"""(["'])cuda\b""", r"\1xla"),
    (r"""(["'])nccl\b""", r"\1xla"),
    (r"\bTEST_CUDA\b", "TEST_PRIVATEUSE1"),
    (r"\bTEST_MULTIGPU\b", "TEST_PRIVATEUSE1"),
)

# Files of torch's wheel on which its tests of processes stand.
OF_THE_WHEEL = (
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.distributed.distributed_test",
    "torch.testing._internal.distributed._tensor.common_dtensor",
    "torch.testing._internal.common_fsdp",
)


def renamed(text: str) -> str:
    """The text of a test file, with the new names."""
    for old, new in RENAMED:
        text = re.sub(old, new, text)
    return text


class _Loader(importlib.machinery.SourceFileLoader):
    """A loader whose modules have the new names, and whose bytecode is kept nowhere."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(renamed(self.get_data(path).decode()).encode(), path)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules whose text is to have the new names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
            spec.cached = None
        return spec


def rename_in(names: Iterable[str]) -> None:
    """From now on, modules of these names are loaded with the new names in their text."""
    sys.meta_path.insert(0, _Finder(names))
