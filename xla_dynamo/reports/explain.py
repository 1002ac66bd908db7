"""`explain(fn)(*args)`: compile and run a function, and report the compilation."""

import inspect
import logging
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.backend import compile_torch_graph
from xla_dynamo.dynamo.dynamo_trace import listening
from xla_dynamo.errors import OptionError
from xla_dynamo.events import BuiltExecutable, Call, Event, Observer, log, log_event
from xla_dynamo.options import Options
from xla_dynamo.reports.report import Report
from xla_dynamo.reports.watched_calls import WatchedCalls
from xla_dynamo.torch_private import CompileContext, region_of, source_name, uncompiled
from xla_dynamo.training.train_step import TrainStep


@torch.compiler.disable
def explain(
    fn: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> "Explained":
    """Compile a function afresh, and report what becomes of it when it is called.

    `print(explain(model)(x))` tells the graphs and why they broke, what torch runs in the place of
    XLA, the executables and the reason for each, what they cost, and how long compiling took. The
    function really runs: what it changes is changed. Call the same object again with other inputs,
    and the report goes on, with what was recompiled and why:

        explained = explain(model)
        explained(torch.randn(8, 16))
        print(explained(torch.randn(9, 16)))

    Args:
        fn: a function, a module, one that `torch.compile` returned, or a `train_step`. What was
            compiled for it before is neither used nor lost, except for a `train_step`, which is
            explained from now on.
        dynamic: as for `torch.compile`.
        options: as for `torch.compile(..., backend="openxla", options=...)`.

    Returns:
        A callable like `fn` that returns a `Report`; what `fn` returned is `report.result`.

    Raises:
        OptionError: see `Options`; or `fn` is a `train_step`, which has its own.
        TypeError: `fn` cannot be called.
    """
    return Explained(fn, dynamic, options)


class Explained:
    """A function whose calls are reported: see `explain`.

    Attributes:
        report: what is known so far.
    """

    def __init__(
        self, fn: Callable[..., Any], dynamic: bool | None, options: Mapping[str, Any] | None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"explain needs a function or a module, not {type(fn).__name__}")
        self.report = Report(getattr(fn, "__qualname__", None) or type(uncompiled(fn)).__name__)
        self._told = set[str]()
        observer = _ReportObserver(self.report)
        if isinstance(fn, TrainStep):
            if dynamic is not None or options is not None:
                raise OptionError("a train_step has its own options: give them to train_step")
            fn.observe(observer)
            self._run: Callable[..., Any] = fn
        else:
            self._run = compiled_apart(
                uncompiled(fn), dynamic, Options.parse(options), observer, observer.name_inputs
            )

    @torch.compiler.disable
    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        """Call the function, and report on all calls so far."""
        with listening(self.report.add, region_of(self._run)):
            self.report.result = self._run(*args, **kwargs)
        if log.isEnabledFor(logging.INFO):
            for one in self.report.advice:
                if one.text not in self._told:
                    self._told.add(one.text)
                    log.info("advice: %s", one)
        return self.report


class _ReportObserver:
    """Logs, and adds to the report as long as somebody has it: Dynamo's cache keeps what it has."""

    def __init__(self, report: Report) -> None:
        self._report = weakref.ref(report)

    def __call__(self, event: Event) -> None:
        """Take an event."""
        log_event(event)
        if (known := self._report()) is not None:
            known.add(event)

    def watch(self, built: BuiltExecutable, call: Call, highs: Sequence[int]) -> Call:
        """The call of an executable, counted for the report."""
        if (known := self._report()) is None:
            return call
        calls = WatchedCalls(built, highs)
        known.calls.append(calls)
        return calls.watching(call)

    def name_inputs(self, gm: torch.fx.GraphModule) -> None:
        """Keep the user's names of the inputs of Dynamo's graph."""
        current = CompileContext.current_compile_id()
        if (known := self._report()) is not None and current is not None:
            nodes = gm.graph.find_nodes(op="placeholder")
            known.inputs[str(current)] = [_users_name(node) for node in nodes]


_LOCAL = re.compile(r"^L\['(\w+)'\]")
_MEMBER = re.compile(r"\._(?:parameters|buffers|modules)\['(\w+)'\]")


def _users_name(node: torch.fx.Node) -> str:
    """What an input of Dynamo's graph is called in the user's function: "x", "self.weight"."""
    return _MEMBER.sub(r".\1", _LOCAL.sub(r"\1", source_name(node)))


def compiled_apart(
    fn: Callable[..., Any],
    dynamic: bool | None,
    options: Options,
    observer: Observer,
    see: Callable[[torch.fx.GraphModule], None] = lambda gm: None,
) -> Callable[..., Any]:
    """Compile a function apart from whatever else was or will be compiled of it.

    `see` is given each of Dynamo's graphs.
    """

    # Not equal to any other, so code that Dynamo compiled with another backend does not fit.
    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        see(gm)
        return compile_torch_graph(gm, example_inputs, options, observer=observer)

    # From torch 2.13, Dynamo's limit of recompilations can be counted apart, too.
    known = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    apart = {"isolate_recompiles": True} if known else {}
    return torch.compile(fn, backend=backend, dynamic=dynamic, **apart)
