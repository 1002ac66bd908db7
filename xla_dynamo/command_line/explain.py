"""Compile and call a function or module, and print what became of it.

The report is that of xla_dynamo.explain: graphs and why they broke, operators that were left to
eager torch, executables and their cost, compile time by stage.

  xla-dynamo explain mymodels:example   # def example(): return model, (torch.randn(8, 64),)
  xla-dynamo explain mymodels:Model --input 'float32[8,64]'
"""

import argparse
import pathlib

from xla_dynamo.command_line import targets
from xla_dynamo.command_line.calling import calling

SUMMARY = "compile module:function, and print what became of it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    targets.add_arguments(parser)
    targets.add_options(parser)
    parser.add_argument("--dynamic", action="store_true", help="leave sizes dynamic")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write the report there")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; returns the exit status.

    Raises:
        CommandFailure: there is no such target, or it cannot be compiled.
    """
    options = targets.options_of(arguments)
    target = targets.find_target(arguments.target, arguments)

    import torch

    from xla_dynamo.reports.explain import explain

    with calling(target, given_inputs=bool(arguments.input)):
        explained = explain(target.fn, dynamic=arguments.dynamic or None, options=options)
        with torch.set_grad_enabled(not arguments.no_grad):
            for args, kwargs in target.calls:
                report = explained(*args, **kwargs)
    print(report)
    if arguments.html:
        arguments.html.write_text(report.html(), encoding="utf-8")
    return 0
