"""The command line: `python -m xla_dynamo COMMAND`, or `xla-dynamo COMMAND`.

`COMMANDS` is the table of commands. The module of a command has `SUMMARY`, one line; it may have
`add_arguments(parser)`; and `run(arguments)` returns the exit status. At its top it imports neither
torch nor jax: `doctor` must run where one of them cannot be imported, and help must come at once.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from xla_dynamo.command_line.failures import CommandFailure

COMMANDS = {
    "cache": "xla_dynamo.command_line.cache",
    "doctor": "xla_dynamo.command_line.doctor",
    "explain": "xla_dynamo.command_line.explain",
    "export": "xla_dynamo.command_line.export",
    "minify": "xla_dynamo.command_line.minify",
    "precompile": "xla_dynamo.command_line.precompile",
    "serve": "xla_dynamo.command_line.serve",
    "tune": "xla_dynamo.command_line.tune",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status: 0, 1 where it failed, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="xla-dynamo",
        description="torch.compile(model, backend='openxla') on any device with a PJRT plugin.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        _add(commands, name, importlib.import_module(module))
    parsed = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path may have what the terminal's encoding lacks, or bytes that are no text.
            stream.reconfigure(errors="backslashreplace")
    try:
        return parsed.run(parsed)
    except CommandFailure as failure:
        print(f"xla-dynamo: {failure}", file=sys.stderr)
        return failure.status
    except BrokenPipeError:  # who reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 1


def _add(commands: Any, name: str, module: Any) -> None:
    command = commands.add_parser(
        name,
        help=module.SUMMARY,
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if hasattr(module, "add_arguments"):
        module.add_arguments(command)
    command.set_defaults(run=module.run)
