"""What is read of Dynamo's own messages, and told to the log as it happens."""

import logging
import re
import textwrap

import torch

import xla_dynamo
from tests.compiling import compiled
from xla_dynamo.dynamo import dynamo_trace


class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def test_the_log_tells_the_same_as_it_happens():
    log = logging.getLogger("xla_dynamo")
    messages, before = Messages(), log.level
    log.addHandler(messages)
    log.setLevel(logging.INFO)
    try:
        run = compiled(torch.sin)
        run(torch.randn(3))
        run(torch.randn(3, 3))
    finally:
        log.removeHandler(messages)
        log.setLevel(before)
        dynamo_trace._TRACE.removeHandler(dynamo_trace._LOG)
    text = "\n".join(messages.texts)
    assert re.search(r"^graph \d+ \(inference, \d+/0\): 1 operators$", text, re.MULTILINE)
    assert re.search(
        r"^executable of graph \d+ .*: the graph is new; lowered in", text, re.MULTILINE
    )
    assert re.search(r"^recompiled .*rank mismatch. expected 1, actual 2", text, re.MULTILINE)


# Dynamo's messages, as torch 2.13 writes them into its structured trace.
BREAK = textwrap.dedent(
    """\
    Graph break in user code at /home/me/model.py:18
    Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call

    Data-dependent branching
      Explanation: Detected data-dependent branching.
      Hint: Use `torch.cond`.

    User code traceback:
      File "/home/me/train.py", line 27, in <module>
        model(x)
      File "/home/me/model.py", line 18, in torch_dynamo_resume_in_inner_at_12
        if y.sum() > 0:

    Traceback (most recent call last):
      File "/site-packages/torch/_dynamo/exc.py", line 727, in unimplemented
        raise Unsupported(msg, gb_type, skip_frame)
    """
)


def test_dynamos_messages_are_read():
    event = dynamo_trace.read_graph_break(BREAK)
    assert event.reason == "Data-dependent branching"
    assert str(event.line) == "/home/me/model.py:18 in inner: if y.sum() > 0:"
    assert "Use `torch.cond`" in event.advice
    assert dynamo_trace.read_reasons('["0/1: a is 3", "0/0: b is 4"]') == {
        "0/1": "a is 3",
        "0/0": "b is 4",
    }
    assert dynamo_trace.read_reasons("0/0: a is 3") == {"0/0": "a is 3"}


def test_what_cannot_be_read_does_not_fail_a_compilation(monkeypatch, capsys):
    def fails(payload):
        raise ValueError("another form")

    def breaks(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    monkeypatch.setattr(dynamo_trace, "read_graph_break", fails)
    report = xla_dynamo.explain(breaks)(torch.randn(8, 16))
    assert report.graphs
    assert "another form" in capsys.readouterr().err
