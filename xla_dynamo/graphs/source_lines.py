"""The line of the user's model that a graph node came from."""

import functools
import os
import re
from typing import NamedTuple

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The beginnings of the paths of files that are not the user's.
NOT_THE_USERS = (_TORCH, _OURS)


class SourceLine(NamedTuple):
    """A place in the user's program."""

    file: str
    line: int
    function: str
    text: str

    @property
    def is_users(self) -> bool:
        """Whether it is neither torch's nor this package's."""
        return not self.file.startswith(NOT_THE_USERS)

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        return f"{self.file}:{self.line} in {self.function}{text}"


def name_of(function: str) -> str:
    """The user's name of a function that may be what Dynamo resumes after a graph break."""
    return _RESUMED.sub(r"\1", function)


@functools.lru_cache(maxsize=4096)
def innermost_user_frame(stack_trace: str) -> SourceLine | None:
    """The innermost line of a formatted stack trace that is not torch's own."""
    found = None
    lines = stack_trace.splitlines()
    for number, line in enumerate(lines):
        frame = _FRAME.search(line)
        # torch.nn's own forward methods are not what the user wrote, unless there is nothing else.
        if frame and (found is None or not frame["file"].startswith(NOT_THE_USERS)):
            text = lines[number + 1].strip() if number + 1 < len(lines) else ""
            text = "" if _FRAME.search(text) else text
            function = name_of(frame["function"].strip())
            found = SourceLine(frame["file"], int(frame["line"]), function, text)
    return found


def outermost_user_frame(stack_trace: str) -> SourceLine | None:
    """The outermost line of a formatted stack trace that is not torch's own."""
    for line in stack_trace.splitlines():
        frame = _FRAME.search(line)
        if frame and not frame["file"].startswith(NOT_THE_USERS):
            function = name_of(frame["function"].strip())
            return SourceLine(frame["file"], int(frame["line"]), function, "")
    return None


def source_line(node: torch.fx.Node) -> SourceLine | None:
    """The user's innermost line behind a node; None for a node nobody wrote."""
    trace = node.meta.get("stack_trace")
    return innermost_user_frame(trace) if trace else None


def last_line(gm: torch.fx.GraphModule) -> SourceLine | None:
    """The user's line behind the end of a graph."""
    lines = map(source_line, reversed(gm.graph.nodes))
    return next((x for x in lines if x and x.is_users), None)


def describe(node: torch.fx.Node) -> str:
    """An indented "at file:line in function: text" for error messages."""
    line = source_line(node)
    return f"\n  at {line}" if line else f"\n  at node {node.name!r} of the graph"


def describe_traced() -> str:
    """The same for the operator that AOTAutograd traces now; empty where nobody knows."""
    trace = torch.fx.traceback.get_current_meta().get("stack_trace")
    line = innermost_user_frame(trace) if trace else None
    return f"\n  at {line}" if line else ""
