"""Make the program of a dump as small as it can be while it fails in the same way.

XLA_DYNAMO_DUMP=folder leaves a folder for each program; its run.py compares it with eager torch. If
that fails, minify writes minified/run.py beside it, a program of few operators, and names the pass
that makes it fail, if one does.

  xla-dynamo minify folder/0001-forward-Net/run.py
"""

import argparse
import pathlib
import sys

from xla_dynamo.command_line.failures import CommandFailure

SUMMARY = "make the program of a dump small while it fails"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("run_py", type=pathlib.Path, metavar="run.py", help="that of a dump")
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="FOLDER", help='instead of "minified" beside run.py'
    )


def run(arguments: argparse.Namespace) -> int:
    """Make it small; returns the exit status.

    Raises:
        CommandFailure: there is no such dump, or its program does not fail.
    """
    from xla_dynamo.errors import StorageError
    from xla_dynamo.reproduction.minify import minify

    try:
        made = minify(
            arguments.run_py,
            arguments.out,
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    except StorageError as error:
        raise CommandFailure(str(error)) from error
    if made is None:
        raise CommandFailure(
            "the program gives eager's results: there is nothing to make small. If it is wrong "
            "where it was dumped, run it there, with the same passes registered"
        )
    print(made)
    return 0
