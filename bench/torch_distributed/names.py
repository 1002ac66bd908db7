"""Load torch's test files with the names of another device and another backend in them.

torch's tests name "cuda" and "nccl" in their text. Here that text has "xla" in both places, and
nothing else is changed: neither a test nor what it asserts. For tensors of the CPU, "gloo" is what
is replaced.
"""

import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Text of torch, and what stands there instead. Environment variables, classes and arguments that
# have the old names in them keep these.
_ON_DEVICE = (
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

_ON_CPU = (
    (r"is_gloo_available", "is_available"),
    (r"== dist\.Backend\.GLOO", '== "xla"'),
    (r"""(["'])gloo\b""", r"\1xla"),
)
RENAMED = {"xla": _ON_DEVICE, "cpu": _ON_CPU}  # by the device of the tests' tensors

# Files of torch's wheel on which its tests of processes stand.
OF_THE_WHEEL = (
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.distributed.distributed_test",
    "torch.testing._internal.distributed._tensor.common_dtensor",
    "torch.testing._internal.common_fsdp",
)


def renamed(text: str, device: str) -> str:
    """The text of a test file, with the new names for tests whose tensors are on a device."""
    for old, new in RENAMED[device]:
        text = re.sub(old, new, text)
    return text


class _Loader(importlib.machinery.SourceFileLoader):
    """A loader whose modules have the new names, and whose bytecode is kept nowhere."""

    device = "xla"

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        text = renamed(self.get_data(path).decode(), self.device)
        return self.source_to_code(text.encode(), path)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules whose text is to have the new names."""

    def __init__(self, folders: Sequence[str], device: str) -> None:
        self._folders, self._device = folders, device

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        spec: Any = None
        if fullname in OF_THE_WHEEL:
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        elif "." not in fullname:
            spec = importlib.machinery.PathFinder.find_spec(fullname, self._folders, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = loader = _Loader(fullname, spec.origin)
            loader.device = self._device
            spec.cached = None
        return spec


def rename_in(folders: Sequence[str], device: str) -> None:
    """From now on, torch's tests in its wheel and in folders are loaded with the new names."""
    sys.meta_path.insert(0, _Finder(folders, device))
