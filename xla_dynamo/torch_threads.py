"""What torch keeps for all threads at once, for each: private parts, as in `torch_private`."""

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _InThisThread:
    """A value for torch's flag "is compiling", which is set in the thread that made it alone.

    In other threads the flag is what it was before. But while one thread traces, they may call
    compiled functions: torch.fx asks this flag whether that is an error, for all threads at once.
    """

    def __init__(self, is_set: bool, before: Any) -> None:
        self._is_set, self._before, self._thread = is_set, _under(before), threading.get_ident()

    def __bool__(self) -> bool:
        if self._thread == threading.get_ident():
            return self._is_set or bool(self._before)
        if self._thread and sys._getframe(1).f_code.co_name == "is_fx_symbolic_tracing":
            return True
        return bool(self._before)

    def end(self) -> None:
        """Be the flag from before, for a thread that has put this aside and puts it back."""
        self._thread = 0


def _under(flag: Any) -> Any:
    """A flag without those that have ended, of threads that overlapped: they would add up."""
    while isinstance(flag, _InThisThread) and not flag._thread:
        flag = flag._before
    if isinstance(flag, _InThisThread):
        flag._before = _under(flag._before)
    return flag


@contextlib.contextmanager
def _compiling_here(is_set: bool) -> Iterator[None]:
    before = torch.compiler._is_compiling_flag
    flag: Any = _InThisThread(is_set, before)
    torch.compiler._is_compiling_flag = flag
    try:
        yield
    finally:
        flag.end()
        if torch.compiler._is_compiling_flag is flag:
            torch.compiler._is_compiling_flag = _under(before)


def as_if_compiling() -> contextlib.AbstractContextManager[None]:
    """Let `torch.compiler.is_compiling()` say so in this thread, as while AOTAutograd works."""
    return _compiling_here(True)


def tracing_here() -> contextlib.AbstractContextManager[None]:
    """Let other threads call compiled functions while this one traces, as Dynamo itself does."""
    by_dynamo = torch.compiler._is_compiling_flag is True
    return contextlib.nullcontext() if by_dynamo else _compiling_here(False)


class _Backends(dict[str, Any]):
    """Torch's table of backends, in which one function may be registered twice under its name.

    Threads that ask for a backend for the first time at once all register it.

    Attributes:
        asked: is called when somebody asks for a backend by its name.
    """

    asked: Callable[[], None]

    def __contains__(self, name: object) -> bool:
        asked = sys._getframe(1).f_locals.get("compiler_fn")
        return super().__contains__(name) and self.get(str(name)) is not asked

    def __getitem__(self, name: str) -> Any:
        self.asked()
        return super().__getitem__(name)


def let_threads_register(asked: Callable[[], None]) -> None:
    """Let several threads look up a backend of torch's by its name for the first time at once.

    From then on `asked` is called at each lookup: so `torch.compile` calls it before any trace.
    """
    registry: Any = importlib.import_module("torch._dynamo.backends.registry")
    if not isinstance(registry._COMPILER_FNS, _Backends):
        registry._COMPILER_FNS = _Backends(registry._COMPILER_FNS)
    registry._COMPILER_FNS.asked = asked
