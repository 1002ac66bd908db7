"""Have Dynamo trace past calls that only log.

Dynamo breaks the graph at `logging` and `warnings.warn`, and raises an error there if the graph
must be whole. A library that logs should not keep a training step from being compiled.
"""

import logging
import warnings
from collections.abc import Callable, Hashable
from typing import Any

from xla_dynamo.torch_private import dynamo_config

_LEVELS = (
    "debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log",
)  # fmt: skip
_NAMES = (*_LEVELS, *(f"{level}_{how}" for level in _LEVELS for how in ("once", "advice")))


def logging_is_skipped() -> dict[str, Any]:
    """What to patch Dynamo's configuration with, so that logging does not stop a trace.

    Calls of loggers, of the functions of `logging` and of `warnings.warn` then do nothing, neither
    in the trace nor in the graph: Dynamo drops them with their arguments. What the user has told
    Dynamo to ignore stays ignored.
    """
    ignored = set(dynamo_config.ignore_logging_functions)
    return {"ignore_logging_functions": ignored | _that_tell()}


def _that_tell() -> set[Callable[..., Any]]:
    """Methods and functions that log and do nothing else, those of now.

    Libraries add methods to `logging.Logger`, such as transformers' `warning_once`. Other methods
    may compute, or tell what a program depends on (`isEnabledFor`): they stay Dynamo's errors.
    """
    found = {vars(logging)[name] for name in _LEVELS if name in vars(logging)} | {warnings.warn}
    classes: list[type] = [logging.Logger]
    for cls in classes:
        classes += cls.__subclasses__()
        its = [vars(cls)[name] for name in _NAMES if name in vars(cls)]
        found |= {method for method in its if isinstance(method, Hashable)}
    return found
