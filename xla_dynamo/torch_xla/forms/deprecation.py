"""Names of `torch_xla.experimental.deprecation`: older names of functions."""

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def deprecated(
    module: ModuleType, new: F, old_name: str | None = None, extra_msg: str | None = None
) -> F:
    """A function under an older name; its first call logs a warning.

    Args:
        module: where the older name is.
        new: the function.
        old_name: the older name; the function's own unless given.
        extra_msg: more for the warning.
    """
    told = f"{module.__name__}.{old_name or new.__name__} is deprecated. "
    told += f"Use {new.__module__}.{new.__name__} instead."
    told += f" {extra_msg}" if extra_msg else ""
    is_told = False

    @functools.wraps(new)
    def older(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_told
        if not is_told:
            logging.getLogger("torch_xla").warning(told)
            is_told = True
        return new(*args, **kwargs)

    return older  # type: ignore[return-value]


def mark_deprecated(new: F, extra_msg: str | None = None) -> Callable[[Callable[..., Any]], F]:
    """Decorate a function that another has replaced: calls warn once, and call that one.

    Args:
        new: the other function.
        extra_msg: more for the warning.
    """

    def decorate(old: Callable[..., Any]) -> F:
        module = importlib.import_module(old.__module__)
        return deprecated(module, new, old.__name__, extra_msg)

    return decorate


def register_deprecated(module: ModuleType, new: Callable[..., Any]) -> None:
    """Put a function into a module where it was before; its first call there logs a warning."""
    setattr(module, new.__name__, deprecated(module, new))
