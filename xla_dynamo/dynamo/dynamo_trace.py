"""Graph breaks and compiled functions, read from torch's structured trace.

`TORCH_TRACE` writes this trace and tlparse reads it; here a handler of its logger listens to it.
"""

import contextlib
import json
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import torch

from xla_dynamo.events import Event, Frame, GraphBreak, Observer, log, log_event
from xla_dynamo.graphs.source_lines import SourceLine, innermost_user_frame, name_of
from xla_dynamo.torch_private import current_region, dtype_abbrs

_TRACE = logging.getLogger("torch.__trace")
_REASON = re.compile(r"(?P<id>\d+/\d+): (?P<reason>.*)")
_SPACES = re.compile(r" {3,}")
# Where Dynamo's message has the user's frames: after one of these, up to Python's own traceback.
_FRAMES_AFTER = re.compile(r"User code traceback:|in the following user code:")
_FRAMES_BEFORE = re.compile(r"\n(Traceback \(most recent call last\)|NoneType: None)")
_OUTER = re.compile(r"Encountered graph break when attempting to trace [^\n]*\n+")


class _Listener(logging.Handler):
    """Tells an observer what Dynamo does: all of it, or in one thread and for one torch.compile."""

    def __init__(
        self, observer: Observer, thread: int | None = None, region: int | None = None
    ) -> None:
        super().__init__()
        self._observer, self._thread, self._region = observer, thread, region
        self._failed: dict[int, dict[str | None, str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        thread = threading.get_ident()
        if self._thread not in (None, thread) or self._region not in (None, current_region()):
            return
        try:
            event = self._event(thread, record.metadata, getattr(record, "payload", ""))  # type: ignore[attr-defined]
        except Exception:
            self.handleError(record)  # what cannot be read must not fail a compilation
        else:
            if event is not None:
                self._observer(event)

    def _event(self, thread: int, metadata: dict[str, Any], payload: str) -> Event | None:
        artifact = metadata.get("artifact", {}).get("name")
        if artifact == "dynamo_graph_break_reason":
            return read_graph_break(payload)
        if artifact == "recompile_reasons":  # of the function whose metrics come next
            self._failed[thread] = read_reasons(payload)
        elif frame := metadata.get("compilation_metrics"):
            failed = self._failed.pop(thread, {})
            return read_frame(frame, failed) if frame.get("co_name") else read_limit(frame)
        return None


# Writes the log.
_LOG = _Listener(log_event)


def read_reasons(payload: str) -> dict[str | None, str]:
    """Why earlier compilations did not fit, by their ids: of one as text, of several in JSON."""
    reasons = json.loads(payload) if payload.startswith("[") else [payload]
    found = filter(None, map(_REASON.match, reasons))
    return {match["id"]: _SPACES.sub("  ", match["reason"].strip()) for match in found}


def read_graph_break(payload: str) -> GraphBreak:
    """The event in the text of the artifact `dynamo_graph_break_reason`."""
    message = _FRAMES_BEFORE.split(payload)[0]
    head, *tail = _FRAMES_AFTER.split(message)
    frames = tail[-1] if tail else message
    reason = head.split("Graph Break Reason:")[-1].strip()
    first, _, advice = _OUTER.sub("", reason).partition("\n")
    return GraphBreak(first, innermost_user_frame(frames), advice.strip("\n"))


def read_limit(metrics: dict[str, Any]) -> GraphBreak | None:
    """The event in the metrics of a function that Dynamo will not compile once more."""
    reason, _, advice = (metrics.get("fail_reason") or "").partition("\n")
    if "limit" not in reason:
        return None  # a graph break, which has been told
    line = innermost_user_frame(metrics.get("recompile_reason") or "")
    return GraphBreak(f"{reason}: Python runs the function from now on", line, advice)


def read_frame(metrics: dict[str, Any], failed_guards: dict[str | None, str]) -> Frame:
    """The event in the structured trace's `compilation_metrics`."""
    function = name_of(metrics.get("co_name") or "?")
    return Frame(
        metrics.get("compile_id") or "?",
        SourceLine(
            metrics.get("co_filename") or "?", metrics.get("co_firstlineno") or 0, function, ""
        ),
        failed_guards,
        metrics.get("entire_frame_compile_time_s") or 0.0,
        metrics.get("backend_compile_time_s") or 0.0,
    )


@contextlib.contextmanager
def listening(observer: Observer, region: int | None) -> Iterator[None]:
    """Tell an observer what Dynamo does in this thread, for one `torch.compile` if known."""
    listener = _Listener(observer, threading.get_ident(), region)
    _add(listener)
    try:
        yield
    finally:
        _TRACE.removeHandler(listener)


def log_what_dynamo_does() -> None:
    """Log graph breaks and compilations from now on, if the log "xla_dynamo" is on."""
    if log.isEnabledFor(logging.INFO) and _LOG not in _TRACE.handlers:
        _add(_LOG)


def _add(listener: _Listener) -> None:
    """Listen to torch, which prints each graph for its listeners.

    There it looks up a short name for each dtype and fails where it has none, as for `uint4`.
    """
    for dtype in vars(torch).values():
        if isinstance(dtype, torch.dtype):
            dtype_abbrs.setdefault(dtype, str(dtype).removeprefix("torch."))
    _TRACE.addHandler(listener)
