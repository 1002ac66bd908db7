"""What PT_XLA_DEBUG_LEVEL asks for: why programs are compiled and run, and a summary at the end.

At level 1, each compilation is told, and at the end of the process what came too often. At level 2,
each execution is told, too. PT_XLA_DEBUG_FILE names a file to write to, instead of standard error.
The form is PyTorch/XLA's.
"""

import atexit
import contextlib
import hashlib
import sys
import traceback
from typing import Any

from xla_dynamo.errors import OptionError
from xla_dynamo.lazy.slices import Slice
from xla_dynamo.lazy.user_lines import is_users
from xla_dynamo.runtime import metrics
from xla_dynamo.switches.pytorch_xla import DEBUG_ALL, DEBUG_FILE, DEBUG_LEVEL

_LINE, _RULE = "=" * 80, "-" * 80
# More often than this a step, and after so many steps, a metric is worth a line.
_OFTEN, _FEWEST_STEPS = 0.5, 10
_FRAMES = 8
_ALL = 2  # what PT_XLA_DEBUG asks for


def level() -> int:
    """How much is told."""
    return _ALL if DEBUG_ALL.get() and DEBUG_LEVEL.text() is None else DEBUG_LEVEL.get()


def tell(compiles: bool, cause: str, part: Slice) -> None:
    """Write why a program is executed, and compiled before it."""
    wanted = level()
    if wanted and compiles:
        _tell("Compilation", cause, part)
    if wanted > 1:
        _tell("Execution", cause, part)


def _tell(kind: str, cause: str, part: Slice) -> None:
    lines = [
        _LINE,
        f"{kind} Cause",
        f"  {cause}",
        "Graph Info:",
        f"  Graph Hash: {hash_of(part.key)}",
        f"  Number of Graph Inputs: {len(part.inputs) + len(part.numbers)}",
        f"  Number of Graph Outputs: {len(part.outputs)}",
        "Python Frame Triggered Execution:",
        *users_frames(),
        _RULE,
        _LINE,
    ]
    _write("\n".join(f"{kind} Analysis: {line}" for line in lines) + "\n\n")


def name_records(error: Exception, part: Slice) -> None:
    """Note with an error which operators were computed, unless it names a recorded line already."""
    told = "\n".join([str(error), *getattr(error, "__notes__", ())])
    lines = {(r.place.code.co_filename, r.place.line) for r in part.records if r.place}
    if any(f"{f}:{n}" in told or f'"{f}", line {n}' in told for f, n in lines):
        return
    ends = [part.records[0], part.records[-1]] if len(part.records) > 1 else part.records
    named = " to ".join(
        f"{r.recipe.signature.op} at {r.place or 'a line of no file of yours'}" for r in ends
    )
    error.add_note(f"while the 'xla' device computed what was recorded: {named}")


def hash_of(key: Any) -> str:
    """A program's name: equal programs of a process have one."""
    return hashlib.md5(str(key).encode(), usedforsecurity=False).hexdigest()


def users_frames() -> list[str]:
    """The user's lines that are running, the innermost first."""
    frames = [
        f"  {f.name} ({f.filename}:{f.lineno})"
        for f in reversed(traceback.extract_stack())
        if is_users(f.filename)
    ]
    more = [f"  .......... ({len(frames) - _FRAMES} more)"] if len(frames) > _FRAMES else []
    return [*frames[:_FRAMES], *more]


def summary() -> list[str]:
    """What came too often, a line each."""
    steps = metrics.counter_value("MarkStep")
    found = []
    for name in ("CompileTime", "TransferFromDeviceTime"):
        data = metrics.metric_data(name)
        count = data[0] if data else 0
        if steps >= _FEWEST_STEPS and count > _OFTEN * steps:
            found.append(f"{name} too frequent: {count} counts during {steps} steps")
    # Values that are asked for are told by their transfers, and no operator could be lowered.
    by_torch = [
        name
        for name in metrics.counter_names()
        if name.startswith("aten::") and name != "aten::_local_scalar_dense"
    ]
    if by_torch:
        found.append(f"Op(s) not lowered: {', '.join(by_torch)}")
    return found


def _write(text: str) -> None:
    path = DEBUG_FILE.get()
    if path:
        try:
            with open(path, "a") as file:
                file.write(text)
        except OSError as error:
            sys.stderr.write(f"PT_XLA_DEBUG_FILE: {error}\n{text}")
    else:
        sys.stderr.write(text)


def _at_the_end() -> None:
    with contextlib.suppress(OptionError):  # each program has raised it
        if level():
            _write("".join(f"pt-xla-profiler: {line}\n" for line in summary()))


atexit.register(_at_the_end)
