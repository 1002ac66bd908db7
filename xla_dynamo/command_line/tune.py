"""Measure on this machine in which forms the products of a function or module are the fastest.

The disk cache keeps the winners, by the model of the processor: every later process takes them,
whether it asks for options={"tune": True} or not. Weights are frozen here, as in inference by
mode="max-autotune"; --option freeze=False leaves them plain. The function is called.

  xla-dynamo tune mymodels:example --no-grad
  xla-dynamo tune mymodels:Model --input 'float32[8,64]' --no-grad
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from xla_dynamo.command_line import targets
from xla_dynamo.command_line.caches import count_of, find_cache, needs_writing
from xla_dynamo.command_line.calling import calling
from xla_dynamo.command_line.failures import CommandFailure
from xla_dynamo.command_line.targets import Target
from xla_dynamo.runtime.cache_contents import unwritable

SUMMARY = "measure which forms of module:function's products are the fastest here"
_ROUNDS, _SECONDS, _WIDTH = 7, 0.2, 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    targets.add_arguments(parser)
    targets.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print what was chosen; returns the exit status, 1 where nothing can be chosen.

    Raises:
        CommandFailure: there is no such target, it cannot be compiled, or there is no disk cache
            that can be written to.
    """
    options = {"freeze": True, **targets.options_of(arguments)}
    folder = find_cache()
    needs_writing(folder, "nothing is measured")
    if reason := unwritable(folder):
        raise CommandFailure(f"{folder.path} cannot be written to: {reason}")
    target = targets.find_target(arguments.target, arguments)
    import torch

    from xla_dynamo.kernels import measurements
    from xla_dynamo.kernels.libraries import can_execute_packed
    from xla_dynamo.kernels.trials import median_seconds

    if not can_execute_packed():
        print("there is nothing to choose here: no library of oneDNN's own (xla-dynamo doctor)")
        return 1
    known = measurements.everything()
    torch.compiler.reset()
    with (
        calling(target, given_inputs=bool(arguments.input)),
        torch.set_grad_enabled(not arguments.no_grad),
    ):
        with measurements.ignored():
            before = _called(target, options)
        start = time.perf_counter()
        after = _called(target, {**options, "tune": True})
        seconds = time.perf_counter() - start
        calls = {"before": before, "now": after}
        times = median_seconds(calls, rounds=_ROUNDS, seconds=_SECONDS)
    found = measurements.everything()
    new = [question for question in found if question not in known]
    print(f"{target.name}: {count_of(len(new), 'product')} measured, compiled in {seconds:.1f} s")
    _show({question: found[question] for question in new})
    gain = times["before"] / times["now"]
    print(f"a round of calls: {times['before'] * 1e3:.2f} ms before, ", end="")
    print(f"{times['now'] * 1e3:.2f} ms by what was measured ({gain:.2f} times as fast)")
    print(f"in {folder.path}")
    return 0


def _called(target: Target, options: Mapping[str, Any]) -> Callable[[], None]:
    """All calls of a target, compiled by these options and called once."""
    import torch

    from xla_dynamo.torch_private import uncompiled

    fn = torch.compile(uncompiled(target.fn), backend="openxla", options=dict(options))

    def call() -> None:
        for args, kwargs in target.calls:
            fn(*args, **kwargs)

    call()
    return call


def _show(found: Mapping[str, Any]) -> None:
    """A table of what was chosen, and of the µs of a product in each form."""
    from rich.console import Console
    from rich.table import Table

    from xla_dynamo.kernels.product_choices import Sizes, shipped

    rows = [(Sizes.of_question(question), one) for question, one in found.items()]
    forms = list(dict.fromkeys(form for _, one in rows for form in one.seconds))
    if not forms:
        return
    table = Table(box=None)
    table.title = "the fastest forms with a plain and with a packed weight, and µs of each form"
    for name in ("product", "plain", "packed"):
        table.add_column(name, no_wrap=True)
    for form in forms:
        table.add_column(form, justify="right", no_wrap=True)
    for sizes, one in rows:
        if sizes is None or not one.answer:
            continue
        shown = f"{str(sizes.dtype).removeprefix('torch.')} "
        shown += " x ".join(map(str, sizes[1 + (sizes.stack == 1) : 5]))
        before = shipped(sizes)
        chosen = [
            form if before is None or form == getattr(before, kind) else f"{form} (new)"
            for kind, form in one.answer.items()
        ]
        times = (f"{one.seconds[f] * 1e6:.0f}" if f in one.seconds else "" for f in forms)
        table.add_row(shown, *chosen, *times)
    Console(file=sys.stdout, width=_WIDTH).print(table)
