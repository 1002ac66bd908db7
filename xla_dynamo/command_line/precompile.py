"""Compile a function or module ahead, into the disk cache, where later processes find it.

Compiled graphs are not run: parameters and buffers stay as they are.

  xla-dynamo precompile mymodels:example --no-grad
  xla-dynamo precompile mymodels:Model --input 'float32[1|8|32,64]' --no-grad

A later process finds what it compiles for the same code, sizes, options and versions. With
gradients, it is the forward that is compiled here.
"""

import argparse
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xla_dynamo.command_line import targets
from xla_dynamo.command_line.caches import count_of, find_cache, needs_writing, size_of
from xla_dynamo.command_line.calling import calling
from xla_dynamo.command_line.failures import CommandFailure
from xla_dynamo.command_line.targets import Target
from xla_dynamo.runtime.cache_contents import unwritable
from xla_dynamo.runtime.cache_folder import CacheFolder

SUMMARY = "compile module:function ahead, into the disk cache"
_ONEDNN = "--option \"libraries=['torch']\" compiles without oneDNN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    targets.add_arguments(parser, nargs="+")
    targets.add_options(parser)
    parser.add_argument(
        "--dynamic",
        action="store_true",
        help="trace once with dynamic sizes, as torch.compile(dynamic=True), for all calls",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile the targets; returns the exit status, 1 where nothing of a target could be kept.

    Raises:
        CommandFailure: there is no such target, it cannot be compiled, or there is no disk cache
            that can be written to.
    """
    options = targets.options_of(arguments)
    folder = find_cache()
    needs_writing(folder, "nothing is compiled")
    if reason := unwritable(folder):
        raise CommandFailure(f"{folder.path} cannot be written to: {reason}")
    status = 0
    for name in arguments.target:
        target = targets.find_target(name, arguments)
        written, found = len(folder.written), len(folder.found)
        with calling(target, given_inputs=bool(arguments.input)), _reasons() as reasons:
            seconds = _compile(target, options, arguments)
        print(f"{name}: {count_of(len(target.calls), 'call')}, {seconds:.2f} s")
        kept = _show(folder, folder.written[written:], folder.found[found:], reasons)
        status = max(status, 0 if kept else 1)
    print(f"in {folder.path}")
    return status


def _compile(target: Target, options: Mapping[str, Any], arguments: argparse.Namespace) -> float:
    """Compile a target for its calls; returns the seconds it took."""
    import torch

    from xla_dynamo.execution.precompile import precompile

    # As a process that makes a call first: sizes that differ between calls are not dynamic.
    calls = [{"call": call._asdict()} for call in target.calls]
    groups = [calls] if arguments.dynamic else [[call] for call in calls]
    seconds = 0.0
    for group in groups:
        torch.compiler.reset()
        fn = _compiled(target.fn, options, arguments.dynamic or None)
        with torch.set_grad_enabled(not arguments.no_grad):
            called = lambda call: fn(*call["args"], **call["kwargs"])  # noqa: E731, B023
            seconds += precompile(called, shapes=group).seconds
    return seconds


def _compiled(fn: Any, options: Mapping[str, Any], dynamic: bool | None) -> Any:
    """A function compiled; one that is already stays as it is, if nothing else is asked for."""
    import torch

    from xla_dynamo.torch_private import uncompiled

    if uncompiled(fn) is not fn and not options and not dynamic:
        return fn
    return torch.compile(
        uncompiled(fn), backend="openxla", dynamic=dynamic, options=dict(options) or None
    )


def _show(
    folder: CacheFolder, written: Sequence[str], found: Sequence[str], reasons: Sequence[str]
) -> bool:
    """Print what became of the entries of a target; whether there are any."""
    known = dict.fromkeys([*written, *found])
    for name in known:
        kind, _, key = name.partition("-")
        with contextlib.suppress(FileNotFoundError):  # evicted since
            size = size_of(folder.file_of(kind, key).stat().st_size)
            state = "written" if name in written else "found"
            print(f"  {state:8} {kind:10}  {key[:12]}  {size:>10}")
    for reason in dict.fromkeys(reasons):
        print(f"  not kept: {reason}")
    if any("onednn" in reason.lower() for reason in reasons):
        print(f"  {_ONEDNN}")
    if not known and not reasons:
        print("  nothing to keep: XLA compiled nothing")
    return bool(known)


@contextlib.contextmanager
def _reasons() -> Iterator[list[str]]:
    """What the log says meanwhile about programs and executables that have no place."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            topic, _, said = record.getMessage().partition("disk cache: ")
            is_miss = said.startswith("no ") and not said.startswith("no place ")
            is_warning = record.levelno > logging.INFO and "cannot be written to" not in said
            if not topic and said and not is_miss and not is_warning:
                found.append(said)
            elif record.levelno > logging.INFO and last is not None:
                last.handle(record)

    log, handler = logging.getLogger("xla_dynamo"), Kept(logging.INFO)
    # Who prints warnings where no handler is, which is not so meanwhile.
    last = None if log.hasHandlers() else logging.lastResort
    before = log.level
    log.addHandler(handler)
    log.setLevel(min(logging.INFO, log.getEffectiveLevel()))
    try:
        yield found
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
