"""The calls that only log, as a setting of Dynamo that lets it trace past them.

Dynamo breaks the graph at `logging` and `warnings.warn`, and stops there if the graph must be
whole. A message of a library must not keep a training step from being compiled.
"""

import logging
import warnings
from collections.abc import Callable
from typing import Any

from xla_dynamo.torch_private import dynamo_config

_LEVELS = (
    "debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log",
)  # fmt: skip


def logging_is_skipped() -> dict[str, Any]:
    """What to patch Dynamo's configuration with, so that logging does not stop a trace.

    Calls of loggers, of the functions of `logging` and of `warnings.warn` then do nothing, neither
    in the trace nor in the graph: Dynamo drops them with their arguments. What the user has told
    Dynamo to ignore stays ignored.
    """
    ignored = dynamo_config.ignore_logging_functions
    return {"ignore_logging_functions": ignored | _that_tell()}


def _that_tell() -> set[Callable[..., Any]]:
    """Methods and functions that log, those of now: libraries add methods to `logging.Logger`."""
    found = {vars(logging)[name] for name in _LEVELS if name in vars(logging)} | {warnings.warn}
    classes = [logging.Logger]
    for cls in classes:
        classes += cls.__subclasses__()
        found |= {method for name, method in vars(cls).items() if _tells(name, method)}
    return found


def _tells(name: str, method: Any) -> bool:
    """Whether it is a method that logs, or asks whether to: skipped, `isEnabledFor` says no."""
    if name == "isEnabledFor":
        return True
    return callable(method) and name.partition("_")[0] in _LEVELS
