"""What `explain` tells of calls: advice, expensive lines, copies at the border, padding, memory."""

import logging
import threading

import pytest
import torch

import xla_dynamo
from tests import fresh_process
from xla_dynamo.reports.hlo_text import parse
from xla_dynamo.reports.line_costs import line_costs
from xla_dynamo.runtime.process_memory import get_memory_info


def line_of(text):
    with open(__file__) as file:
        (number,) = [n for n, line in enumerate(file, 1) if text in line and "line_of(" not in line]
    return number


def told(report):
    return "\n".join(map(str, report.advice))


def products(x, w):
    h = x @ w  # the line of the product
    return h.sin().sum()  # the line of the sum


def test_the_most_expensive_line_is_first():
    report = xla_dynamo.explain(products)(torch.randn(256, 512), torch.randn(512, 256))
    first, *others = line_costs(report.executables[0])
    assert (first.file, first.line) == (__file__, line_of("# the line of the product"))
    assert first.flops == 2 * 256 * 512 * 256, "torch's own formula"
    assert first.share > 0.5
    assert line_of("# the line of the sum") in [o.line for o in others]
    assert sum(c.share for c in (first, *others)) == pytest.approx(1)
    assert "│ h = x @ w" in str(report), "on a line of its own, however long the path is"


def test_copies_at_the_border_name_the_argument_and_the_reason(monkeypatch, request):
    explained = xla_dynamo.explain(products)
    rows, weights = torch.randn(256, 600)[:, :512], torch.randn(512 * 256 + 1)[1:].view(512, 256)
    log, written = logging.getLogger("xla_dynamo"), []
    request.addfinalizer(lambda level=log.level: log.setLevel(level))
    log.setLevel(logging.INFO)
    monkeypatch.setattr(log, "info", lambda form, *args: written.append(form % args))
    explained(rows, weights)
    report = explained(rows, weights)
    (calls,) = report.calls
    assert calls.count == 2
    gaps, misaligned = calls.copies[0], calls.copies[1]
    assert (gaps.times, gaps.bytes) == (2, 256 * 512 * 4)
    assert "gaps" in gaps.reason
    assert "multiple of 64" in misaligned.reason
    assert "call `.contiguous()` on argument `x`" in told(report)
    assert "call `.clone()` on argument `w`" in told(report)
    assert "".join(written).count("argument `x` once") == 1, "the log says it once"
    assert "argument `x`" in report.html()


def test_what_needs_no_copy_gets_no_advice():
    explained = xla_dynamo.explain(lambda x, w: x.mT @ w)
    report = explained(torch.randn(512, 256), torch.randn(512, 64).t().contiguous().t())
    assert not report.calls[0].copies
    assert not report.advice
    assert "Advice" not in str(report)


def test_padding_is_counted_and_buckets_are_proposed():
    options = {"buckets": [64]}
    explained = xla_dynamo.explain(lambda x: (x * 2).sum(0), dynamic=True, options=options)
    for n in (17, 18, 19, 20, 21):
        report = explained(torch.randn(n, 8))
    padded = [calls for calls in report.calls if calls.asked]
    asked, calls = sum(c.asked for c in padded), sum(c.count for c in padded)
    assert calls >= 3
    assert sum(c.computed for c in padded) == calls * 64
    assert 17 * calls <= asked <= 21 * calls
    assert 'options={"buckets"' in told(report)


def test_graph_breaks_and_eager_operators_come_first():
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()  # the line that breaks
        return y[:, :-1] * x[:, 1:].nonzero().shape[0]

    report = xla_dynamo.explain(broken)(torch.randn(200, 200))
    assert report.advice[0].rank == 0
    assert f"{__file__}:{line_of('# the line that breaks')}" in told(report)


def test_the_memory_of_a_training_step():
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = xla_dynamo.train_step(model, lambda model, x: model(x).square().mean(), optimizer)
    explained = xla_dynamo.explain(step)
    explained(torch.randn(64, 256))
    report = explained(torch.randn(64, 256))
    memory = report.memory[-1]
    parameters = 4 * sum(p.numel() for p in model.parameters())
    assert memory.alias_bytes == 2 * parameters, "parameters and momenta are changed in place"
    assert memory.peak_bytes == pytest.approx(memory.assigned_bytes, rel=0.25)
    assert memory.peak_bytes == max(moment.bytes for moment in memory.timeline)
    assert sum(one.bytes for one in memory.held) == memory.peak_bytes
    assert {one.kind for one in memory.held} >= {"argument"}
    assert [call.program for call in report.memory_timeline][-1] == memory.name
    assert "<svg" in report.html()


def test_lines_hold_the_memory_at_the_peak():
    def grow(x):
        wide = x[:, None] * x[None, :]  # the line of the wide tensor
        return wide @ wide

    (memory,) = xla_dynamo.explain(grow)(torch.randn(512)).memory
    wide = [one for one in memory.held if one.bytes == 512 * 512 * 4]
    assert len(wide) == 2
    lines = {place.line for one in wide for place in one.places}
    assert line_of("# the line of the wide tensor") in lines


def test_the_peak_of_a_process_is_what_was_foretold():
    printed = fresh_process.python(
        """
        import torch, xla_dynamo
        from xla_dynamo.runtime.process_memory import peak_resident_bytes

        def f(x):
            return torch.linalg.vector_norm((x[:, None] * x).cumsum(0) @ x)

        explained = xla_dynamo.explain(f, dynamic=False)
        explained(torch.randn(64))   # imports and threads are there
        before = peak_resident_bytes()
        report = explained(torch.randn(8192))
        print(peak_resident_bytes() - before, max(m.peak_bytes for m in report.memory))
        """
    )
    grown, foretold = map(int, printed.split()[-2:])
    assert foretold > 200e6
    assert grown == pytest.approx(foretold, rel=0.1)


def test_memory_of_the_cpu_is_the_processes():
    found = get_memory_info("cpu")
    assert 0 < found["bytes_used"] <= found["peak_bytes_used"] < found["bytes_limit"]
    held = xla_dynamo.explain(lambda x: x + 1)(torch.zeros(1 << 20)).result
    assert get_memory_info("cpu")["buffer_bytes"] >= held.nbytes


def test_threads_count_all_calls():
    explained = xla_dynamo.explain(lambda x: x.cos())
    explained(torch.randn(32))
    run = explained._run
    threads = [
        threading.Thread(target=lambda: [run(torch.randn(32)) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert explained.report.calls[0].count == 201


def test_a_call_that_fails_is_not_counted():
    explained = xla_dynamo.explain(lambda x: x.cos())
    report = explained(torch.randn(32))
    with pytest.raises(TypeError):
        explained()
    assert report.calls[0].count == 1


def test_nobody_else_is_watched():
    compiled = torch.compile(lambda x: x.exp(), backend="openxla")
    compiled(torch.randn(8))
    report = xla_dynamo.explain(lambda x: x.exp())(torch.randn(8))
    compiled(torch.randn(8))
    assert report.calls[0].count == 1


def test_loops_are_read_with_their_trips():
    text = """HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }

%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} add(%p, %p)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %w = f32[8]{0} while(%x), condition=%c, body=%body, b={"known_trip_count":{"n":"7"}}
}
"""
    module = parse(text)
    assert (module.entry, module.aliases) == ("main", {0: 0})
    loop = module.computations["main"][1]
    assert (loop.trip_count, loop.called, loop.operands) == (7, ("c", "body"), ("x",))
    assert (loop.bytes, loop.is_root) == (32, True)
