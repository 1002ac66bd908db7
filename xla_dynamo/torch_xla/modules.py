"""Modules named as PyTorch/XLA's, whose names are looked up when somebody uses them."""

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, NoReturn

from xla_dynamo.errors import XlaDynamoError
from xla_dynamo.torch_xla.names import IMPORTS, TABLES
from xla_dynamo.torch_xla.names.entries import Entry

NAME = "torch_xla"


class NotHere(XlaDynamoError, NotImplementedError):
    """A script uses a name of PyTorch/XLA that nothing here stands for."""


class _Missing:
    """What a script imports under such a name: using it is an error that says what to do."""

    def __init__(self, name: str, why: str) -> None:
        self._text = f"{name} is not in xla_dynamo: {why}"
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]
        self.__doc__ = self._text

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotHere(self._text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks for
            raise AttributeError(name)
        raise NotHere(self._text)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        raise NotHere(self._text)

    def __instancecheck__(self, value: Any) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{self._text}>"


class _Module(ModuleType):
    """A module with the names of a table.

    Attributes:
        is_of_xla_dynamo: by which the lazy device knows it from PyTorch/XLA's.
    """

    is_of_xla_dynamo = True
    _names: Mapping[str, Entry]

    def __getattr__(self, name: str) -> Any:
        entry = self._names.get(name)
        if entry is None and f"{self.__name__}.{name}" in TABLES:
            # PyTorch/XLA imports most of its modules at once.
            return importlib.import_module(f"{self.__name__}.{name}")
        if entry is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _found(f"{self.__name__}.{name}", entry)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})


def _found(name: str, entry: Entry) -> Any:
    """What stands for a name: looked up at each use, since some change as a program runs."""
    if not entry.target:
        return _Missing(name, entry.note)
    module, _, attribute = entry.target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Leave out the collections of garbage for which imports make objects enough.

    What they make stays, and the collections were a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the tables, and makes them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != NAME and not name.startswith(NAME + "."):
            return None
        if name not in TABLES:
            return None
        is_package = any(other.startswith(name + ".") for other in TABLES)
        return importlib.util.spec_from_loader(name, self, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _Module(spec.name)
        module._names = TABLES[spec.name]
        return module

    def get_code(self, name: str) -> CodeType:
        """What `python -m` runs of a module: its function `main`, if it has one."""
        calls = f"from {name} import main\nmain()\n" if "main" in TABLES[name] else ""
        return compile(calls, f"<{name}>", "exec")

    def exec_module(self, module: ModuleType) -> None:
        for needed in IMPORTS.get(module.__name__, ()):
            importlib.import_module(needed)
        if module.__name__ == NAME:
            # As there, the device exists once the package is imported.
            with _nothing_collected():
                importlib.import_module("xla_dynamo").device()
        module.__all__ = [n for n in TABLES[module.__name__] if not n.startswith("_")]  # type: ignore[attr-defined]


_finder = _Finder()


def install() -> None:
    """Let `import torch_xla` in this process import the modules of PyTorch/XLA over this package.

    Raises:
        XlaDynamoError: PyTorch/XLA itself is imported already.
    """
    if not is_ours(known := sys.modules.get(NAME)):
        raise XlaDynamoError(
            f"PyTorch/XLA itself is imported, from {getattr(known, '__file__', None)}: its device "
            "and ours cannot be in one process. Call xla_dynamo.torch_xla.install() before "
            "anything imports torch_xla, or uninstall torch_xla"
        )
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def is_ours(module: ModuleType | None) -> bool:
    """Whether a module under PyTorch/XLA's name is this package's, or there is none."""
    return module is None or isinstance(module, _Module)
