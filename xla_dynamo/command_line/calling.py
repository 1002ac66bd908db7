"""What goes wrong while a target is compiled and called, as the failure of a command."""

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from xla_dynamo.command_line.failures import CommandFailure
from xla_dynamo.command_line.targets import Call, Target

_NOT_THE_USERS = ("torch", "jax", "xla_dynamo")
# Dynamo writes the user's lines into the message of an error.
_USER_CODE = re.compile(r"from user code:\n(.*?)(?:\n\n|\Z)", re.DOTALL)


@contextlib.contextmanager
def calling(target: Target, *, given_inputs: bool) -> Iterator[None]:
    """In this block, what a target raises becomes a CommandFailure.

    Args:
        target: what is called.
        given_inputs: whether the command line says with what, so that what eager torch refuses,
            too, is a wrong command line.
    """
    from xla_dynamo.errors import XlaDynamoError
    from xla_dynamo.torch_private import BackendCompilerFailed

    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)  # it writes the traceback of what is raised anyway
    try:
        yield
    except CommandFailure:
        raise
    except (XlaDynamoError, BackendCompilerFailed) as error:
        raise CommandFailure(str(getattr(error, "inner_exception", error))) from error
    except Exception as error:
        inputs = "; ".join(dict.fromkeys(map(_shown, target.calls)))
        raise CommandFailure(
            f"{target.name} failed with ({inputs}): {_told(error)}",
            status=2 if given_inputs else 1,
        ) from error
    finally:
        log.setLevel(before)


def _told(error: Exception) -> str:
    """What an error says, or the one that Dynamo met in the user's code, and where that is."""
    met = _USER_CODE.search(str(error))
    first: BaseException = error
    while met and (inner := first.__cause__ or first.__context__) is not None:
        first = inner
    where = met[1].strip() if met else _innermost(error)
    told = f"{type(first).__name__}: {str(first).strip()}"
    return f"{told}\n  {where}" if where else told


def _innermost(error: Exception) -> str:
    """The innermost line that is neither torch's nor ours; "" where there is none."""
    files = [sys.modules[name].__file__ or "" for name in _NOT_THE_USERS if name in sys.modules]
    folders = tuple(os.path.dirname(file) + os.sep for file in files)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*folders, "<")):
            return f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    return ""


def _shown(call: Call) -> str:
    named = [f"{name}={_argument(value)}" for name, value in call.kwargs.items()]
    return ", ".join([*map(_argument, call.args), *named])


def _argument(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        sizes: Sequence[int] = value.shape
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, sizes))}]"
    return type(value).__name__
