"""What goes wrong while a target is compiled and called, as the failure of a command."""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from xla_dynamo.command_line.failures import CommandFailure
from xla_dynamo.command_line.targets import Call, Target

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
            f"{target.name} cannot be called with ({inputs}): {_told(error)}",
            status=2 if given_inputs else 1,
        ) from error
    finally:
        log.setLevel(before)


def _told(error: Exception) -> str:
    """What an error says: the one that Dynamo met in the user's code, and where, if it is one."""
    where = _USER_CODE.search(str(error))
    first: BaseException = error
    while where and first.__cause__ is not None:
        first = first.__cause__
    told = f"{type(first).__name__}: {str(first).strip()}"
    return f"{told}\n  {where[1].strip()}" if where else told


def _shown(call: Call) -> str:
    named = [f"{name}={_argument(value)}" for name, value in call.kwargs.items()]
    return ", ".join([*map(_argument, call.args), *named])


def _argument(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        sizes: Sequence[int] = value.shape
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, sizes))}]"
    return type(value).__name__
