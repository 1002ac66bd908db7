"""Names of `torch_xla.debug.frame_parser_util`: which lines of Python asked for operators."""

import collections
import logging
import os
import re
from collections.abc import Iterable, Mapping

from xla_dynamo.switches.pytorch_xla import DEBUG_FILE

log = logging.getLogger("pt-xla-profiler")
_RULE = "=" * 80
_FRAME = re.compile(r".*\s\(.*:\d*\)")
_OPERATOR = re.compile(r"\[TAG\s(.*)\sFrom Thread\s\d*\]")


def parse_frame_content(line: str) -> str | None:
    """A line of a dump as a report has it: a frame, or an operator; None for any other line."""
    if line.startswith("Python Frames:") or _FRAME.match(line):
        return line
    operator = _OPERATOR.match(line)
    return f'Unlowered Op: "{operator[1]}"\n' if operator else None


def parse_frames(lines: Iterable[str]) -> dict[str, int]:
    """How often each stack of Python's frames, with its operator, stands in a dump.

    Frames of C++ are left out.
    """
    counts: dict[str, int] = collections.defaultdict(int)
    stack: list[str] = []
    is_of_cpp = False
    for line in lines:
        if line.startswith("C++ Frames:"):
            is_of_cpp = True
        elif line.startswith("*** End stack trace ***"):
            is_of_cpp = False
        elif is_of_cpp:
            continue
        elif (content := parse_frame_content(line)) is not None:
            stack.append(content)
        elif stack:
            counts["".join(stack)] += 1
            stack = []
    return counts


def create_report(frames: Mapping[str, int]) -> None:
    """Write stacks with their counts, the most frequent first.

    The report goes to the end of the file that PT_XLA_DEBUG_FILE names, or else to the log.
    """
    report = [
        _RULE,
        "Unlowered Op usage summary (more of these ops, lower performance)",
        "Note: _local_scalar_dense typically indicates CPU context access",
        "-" * 80,
    ]
    for stack in sorted(frames, key=lambda stack: frames[stack], reverse=True):
        report += [f"FRAME (count={frames[stack]}):", stack, ""]
    report.append(_RULE)
    path = DEBUG_FILE.get()
    if path:
        with open(path, "a") as file:
            file.write("\n".join(report))
        return
    for line in "\n".join(report).split("\n"):
        log.warning(line)


def process_frames(fname: str | os.PathLike[str]) -> None:
    """Write the report of a dump.

    Raises:
        FileNotFoundError: the file is not there.
    """
    with open(fname) as file:
        create_report(parse_frames(file))
