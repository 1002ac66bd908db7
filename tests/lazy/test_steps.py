"""Steps: where they end, what runs at once, and what is told of them. PyTorch/XLA's names."""

import threading

import pytest
import torch

import xla_dynamo
from tests import fresh_process
from xla_dynamo import metrics
from xla_dynamo.lazy import contents, growth


def is_pending(tensor):
    return contents.cell_of(tensor).value.buffer is None


@pytest.fixture(autouse=True)
def nothing_counted():
    xla_dynamo.device()
    xla_dynamo.sync()
    metrics.clear_all()


def compilations():
    return metrics.counter_value("UncachedCompile")


def test_a_step_is_a_block():
    before = torch.ones(3, device="xla") + 1
    with xla_dynamo.step():
        assert not is_pending(before)
        x = before * 2
        assert is_pending(x)
    assert not is_pending(x)
    assert metrics.counter_value("MarkStep") == 1


def test_an_exception_inside_a_step():
    x = torch.ones(3, device="xla") * 5
    with pytest.raises(ZeroDivisionError), xla_dynamo.step():
        x.mul_(1 / 0)
    with pytest.raises(ZeroDivisionError), xla_dynamo.step():
        _fail_after(x)
    assert is_pending(x)
    assert metrics.counter_value("MarkStep") == 0
    assert x.tolist() == [10, 10, 10]


def _fail_after(x):
    x.mul_(2)
    raise ZeroDivisionError


def test_mark_step_is_sync():
    x = torch.ones(3, device="xla") + 1
    xla_dynamo.mark_step()
    assert not is_pending(x)
    assert metrics.counter_value("MarkStep") == 1


@pytest.mark.parametrize("module", [False, True])
def test_a_compiled_function(module):
    layer = torch.nn.Linear(3, 3).to("xla")
    f = layer if module else (lambda x: layer(x))
    g = xla_dynamo.compile(f, full_graph=True)
    x = torch.randn(2, 3, device="xla")
    with torch.no_grad():
        expected = layer(x).cpu()
        xla_dynamo.sync()
        metrics.clear_all()
        for _ in range(4):
            y = g(x)
            assert not is_pending(y)
            torch.testing.assert_close(y.cpu(), expected)
    assert compilations() <= 1
    assert metrics.counter_value("CachedCompile") >= 3


def test_as_a_decorator_and_as_a_block():
    @xla_dynamo.compile(full_graph=True, name="named")
    def f(x):
        """Its own."""
        return x + 1

    assert f.__name__ == "f"
    assert f.__doc__ == "Its own."
    assert f(torch.ones(2, device="xla")).tolist() == [2, 2]
    with xla_dynamo.compile(), torch.profiler.profile():
        y = f(torch.ones(2, device="xla"))
    assert y.tolist() == [2, 2]


def test_a_value_inside_a_full_graph():
    def f(x):
        y = x * 2
        if y.sum() > 0:  # asks
            return y
        return x

    x = torch.ones(3, device="xla")
    assert xla_dynamo.compile(f)(x).tolist() == [2, 2, 2]
    with pytest.raises(
        xla_dynamo.UnsupportedError, match=r"full_graph=True.*(\n.*)*y\.sum\(\) > 0"
    ):
        xla_dynamo.compile(f, full_graph=True)(x)
    assert f(x).tolist() == [2, 2, 2]  # outside, all is as before


def test_too_many_graphs():
    f = xla_dynamo.compile(lambda x: x.sin().sum(), max_different_graphs=2)
    for n in (3, 4, 3, 4):
        f(torch.ones(n, device="xla"))
    with pytest.raises(xla_dynamo.UnsupportedError, match="more than 2 different graphs"):
        f(torch.ones(5, device="xla"))
    assert f(torch.ones(3, device="xla")).item() == pytest.approx(3 * 0.841471, rel=1e-4)


def test_eager_mode():
    assert not xla_dynamo.is_eager_mode()
    xla_dynamo.eager_mode(True)
    try:
        x = torch.ones(3, device="xla")
        y = x + 1
        y.mul_(3)
        parts = y.split([1, 2])
        assert not is_pending(y)
        assert [p.tolist() for p in parts] == [[6], [6, 6]]
        seen = compilations()
        for _ in range(3):
            z = torch.ones(3, device="xla") + 1
        assert z.tolist() == [2, 2, 2]
        assert compilations() == seen
        with xla_dynamo.step():
            inside = x * 7
            assert is_pending(inside)
        assert not is_pending(inside)
    finally:
        xla_dynamo.eager_mode(False)
    assert is_pending(x + 1)


def test_eager_mode_trains():
    curves = []
    for eager in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2).to("xla")
        optimizer = torch.optim.Adam(layer.parameters(), 0.1)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).to("xla")
        xla_dynamo.eager_mode(eager)
        try:
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = layer(x).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        finally:
            xla_dynamo.eager_mode(False)
        curves.append(losses)
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


def test_closures_run_when_the_step_is_over():
    told = []
    x = torch.ones(3, device="xla") * 4

    def tell(value):
        told.append((is_pending(value), value.tolist()))

    xla_dynamo.add_step_closure(tell, args=(x,))
    assert not told
    xla_dynamo.sync()
    xla_dynamo.sync()
    assert told == [(False, [4, 4, 4])]


def test_closures_of_another_thread():
    thread = []
    xla_dynamo.add_step_closure(lambda: thread.append(threading.get_ident()), run_async=True)
    xla_dynamo.sync()
    xla_dynamo.wait_device_ops()
    assert thread != [threading.get_ident()]
    assert len(thread) == 1
    xla_dynamo.add_step_closure(lambda: 1 / 0, run_async=True)
    xla_dynamo.sync()
    with pytest.raises(ZeroDivisionError):
        xla_dynamo.wait_device_ops()


def test_memory_of_the_device():
    before = xla_dynamo.get_memory_info()["bytes_used"]
    x = torch.ones(1000, 1000, device="xla") + 1
    xla_dynamo.sync()
    assert xla_dynamo.get_memory_info("xla:0")["bytes_used"] >= before + 4_000_000
    del x
    assert xla_dynamo.get_memory_info()["bytes_used"] <= before + 1_000_000


def test_a_stream_that_nobody_ends(monkeypatch):
    """It is cut at the same line each time, and so becomes few programs."""
    monkeypatch.setattr(growth, "MANY", 60)
    x = torch.ones(4, device="xla")
    most = 0
    for _ in range(80):
        x = x * 1.01
        x = x - 0.01
        x = x.clamp(0, 2)
        x = x.roll(1)
        x = x + x.mean() * 0
        record = contents.cell_of(x).value.record
        most = max(most, depth(record))
    assert most <= 2 * 60 + 10
    seen = compilations()
    assert seen <= 6
    assert x.tolist() == pytest.approx([1.0] * 4, rel=1e-3)


def depth(record):
    found, stack = set(), [record]
    while stack:
        record = stack.pop()
        if record is not None and record.order not in found:
            found.add(record.order)
            stack += [a.value.record for a in record.inputs]
    return len(found)


def told_by(script, **environment):
    """What a program of its own, without warnings, writes to stderr."""
    done = fresh_process.run(script, **environment)
    assert not done.returncode, done.stderr
    return done.stderr


LOOP = """
import torch, xla_dynamo
xla_dynamo.device()
for n in range(1, 13):
    x = torch.ones(n, device="xla") * 2
    x.sum().item()
    y = x + 1
    xla_dynamo.sync()
torch.ones(3, device="xla").nonzero()
"""


def test_the_summary_at_the_end():
    told = told_by(LOOP, PT_XLA_DEBUG_LEVEL="1")
    assert "pt-xla-profiler: CompileTime too frequent: " in told
    assert "counts during 12 steps" in told
    assert "pt-xla-profiler: TransferFromDeviceTime too frequent: 12 counts" in told
    assert "Op(s) not lowered: aten::nonzero" in told
    assert "Compilation Analysis: Compilation Cause" in told
    assert "<module> (<string>" not in told
    assert "Execution Analysis" not in told


def test_every_execution_is_told(tmp_path):
    path, script = tmp_path / "told", tmp_path / "script.py"
    script.write_text(LOOP)
    told = told_by(
        f"import runpy; runpy.run_path({str(script)!r})",
        PT_XLA_DEBUG="1",  # as level 2
        PT_XLA_DEBUG_FILE=str(path),
    )
    assert "Analysis" not in told
    text = path.read_text()
    assert "Execution Analysis:   sync()" in text
    assert "Execution Analysis:   a value is asked for" in text
    assert f"Execution Analysis:   <module> ({script}:8)" in text
    assert "Number of Graph Inputs: " in text


def test_nothing_is_told_unasked():
    assert not told_by(LOOP)


def test_two_threads_in_one_compiled_function():
    """Each has its own block, however they leave it."""
    inside, leave = threading.Event(), threading.Event()
    failures = []

    def f(x, wait):
        if wait:
            inside.set()
            leave.wait(20)
        return x + 1

    g = xla_dynamo.compile(f, full_graph=True)

    def work():
        try:
            g(torch.ones(2, device="xla"), True)
            assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(20)
    with xla_dynamo.compile(full_graph=True):
        x = g(torch.ones(2, device="xla"), False)
    leave.set()
    thread.join()
    assert not failures
    assert x.tolist() == [2, 2]
    assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]


def test_blocks_inside_a_full_graph_are_part_of_it():
    def power(x, n):
        return x if n == 0 else f(x * 2, n - 1)

    f = xla_dynamo.compile(power, full_graph=True)
    metrics.clear_all()
    x = f(torch.ones(2, device="xla"), 3)
    assert metrics.counter_value("MarkStep") == 1
    assert x.tolist() == [8, 8]


def test_a_block_is_one_program_however_long(monkeypatch):
    monkeypatch.setattr(growth, "MANY", 20)
    x = torch.ones(2, device="xla")
    xla_dynamo.sync()
    metrics.clear_all()
    with xla_dynamo.compile(full_graph=True):
        for _ in range(100):
            x = x + 1
    assert metrics.metric_data("ExecuteTime")[0] == 1
    assert x.tolist() == [101, 101]


@pytest.mark.parametrize("name", ["zero_", "copy_"])
def test_streams_of_writes_are_cut(monkeypatch, name):
    monkeypatch.setattr(growth, "MANY", 50)
    x, y = torch.ones(4, device="xla"), torch.ones(4, device="xla")
    arguments = [y] if name == "copy_" else []
    for _ in range(400):
        getattr(x, name)(*arguments)
    record = contents.cell_of(x).value.record
    assert record is None or depth(record) <= 110


def test_a_closure_that_fails_keeps_none_from_being_run():
    told = []

    def fail():
        raise ValueError("one of them")

    xla_dynamo.add_step_closure(fail, run_async=True)
    xla_dynamo.sync()
    with pytest.raises(ValueError, match="one of them"):
        xla_dynamo.wait_device_ops()
    xla_dynamo.add_step_closure(fail)
    xla_dynamo.add_step_closure(told.append, ("run",))
    with pytest.raises(ValueError, match="one of them"):
        xla_dynamo.sync()
    assert told == ["run"]


def test_what_the_closures_of_the_last_step_raise_is_told_at_the_end():
    told = told_by("""
import time
import xla_dynamo
def late():
    time.sleep(0.2)
    raise ValueError("too late")
xla_dynamo.device()
xla_dynamo.add_step_closure(late, run_async=True)
xla_dynamo.sync()
""")
    assert "in late" in told
    assert "ValueError: too late" in told


def test_a_closure_that_waits():
    xla_dynamo.add_step_closure(xla_dynamo.wait_device_ops, run_async=True)
    xla_dynamo.sync()
    xla_dynamo.wait_device_ops()


def test_a_file_that_cannot_be_written():
    told = told_by(LOOP, PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_FILE="/nonexistent/file")
    assert "PT_XLA_DEBUG_FILE: " in told
    assert "Compilation Analysis" in told
