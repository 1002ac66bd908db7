"""Graph nodes to the line of the user's model they came from."""

import functools
import os
import re
from typing import NamedTuple

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class SourceLine(NamedTuple):
    """A place in the user's program."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        return f"{self.file}:{self.line} in {self.function}{text}"


@functools.lru_cache(maxsize=4096)
def _innermost_user_frame(stack_trace: str) -> SourceLine | None:
    found = None
    lines = stack_trace.splitlines()
    for number, line in enumerate(lines):
        frame = _FRAME.search(line)
        # torch.nn's own forward methods are not what the user wrote, unless there is nothing else.
        if frame and (found is None or not frame["file"].startswith(_TORCH)):
            text = lines[number + 1].strip() if number + 1 < len(lines) else ""
            text = "" if _FRAME.search(text) else text
            found = SourceLine(frame["file"], int(frame["line"]), frame["function"].strip(), text)
    return found


def source_line(node: torch.fx.Node) -> SourceLine | None:
    """The user's innermost line behind a node; None for a node nobody wrote."""
    trace = node.meta.get("stack_trace")
    return _innermost_user_frame(trace) if trace else None


def describe(node: torch.fx.Node) -> str:
    """An indented "at file:line in function: text" for error messages."""
    line = source_line(node)
    return f"\n  at {line}" if line else f"\n  at node {node.name!r} of the graph"
