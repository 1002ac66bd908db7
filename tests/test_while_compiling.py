"""Calls do not wait in vain: each executable is compiled once, and blocks no call but its own.

Cold: Dynamo starts anew in each test. Compilations are held back by an event where a test needs to
look at what happens meanwhile, so nothing depends on how long one takes.
"""

import contextlib
import logging
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.comparison import compare
from tests.compiling import compiled, compiled_whole, leaf
from tests.host_operators import host_sine
from xla_dynamo.errors import CompileError, OptionError
from xla_dynamo.execution import compiled_graph
from xla_dynamo.graphs.dynamic_sizes import NotBounded
from xla_dynamo.options import Options
from xla_dynamo.programs.lower_bounded import lower_bounded
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.variants import background, bucketed_calls
from xla_dynamo.variants.executable_cache import ExecutableCache

TIMEOUT = 60


class Held:
    """XLA's compilations, each of which waits for `release`; `trace` tells what happened."""

    def __init__(self):
        self.trace: list[tuple[str, int]] = []
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()
        self.number = 0

    def __call__(self, module, *args):
        self.number += 1
        number = self.number
        self.trace.append(("begin", number))
        self.begun.release()
        assert self.release.wait(TIMEOUT)
        self.trace.append(("end", number))
        return Executable(module, *args)

    def wait_for(self, count):
        for _ in range(count):
            assert self.begun.acquire(timeout=TIMEOUT)


@pytest.fixture(autouse=True)
def _nothing_goes_on():
    """No compilation of a test lasts into the next one."""
    yield
    for thread in threading.enumerate():
        if thread.name == "xla_dynamo compile":
            thread.join(TIMEOUT)
            assert not thread.is_alive()


@pytest.fixture
def held(monkeypatch, _nothing_goes_on):
    """Holds back what is compiled from now on."""
    held = Held()
    held.hold = lambda: monkeypatch.setattr(compiled_graph, "Executable", held)
    yield held
    held.release.set()


@contextlib.contextmanager
def in_threads(calls):
    """Make the calls in a thread each; the dictionary gets what they return or raise, by number."""
    results = {}

    def run(number, call):
        try:
            results[number] = call()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        for thread in threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def f(x):
    return x.softmax(0) @ x.T


def rows(n):
    """An input whose first size is dynamic from the first call on."""
    x = torch.randn(n, 11)
    torch._dynamo.mark_dynamic(x, 0)
    return x


@pytest.mark.parametrize("buckets", [[4, 8, 16, 32, 48], "exact"])
def test_eight_threads_and_one_compilation_of_each(buckets, held, executables):
    """Two threads for each of four buckets (or sizes), and one for a fifth that is there."""
    sizes = (5, 7, 9, 12, 17, 20, 33, 40) if buckets != "exact" else (5, 5, 9, 9, 17, 17, 33, 33)
    run = compiled_whole(f, buckets=buckets)
    ready = rows(3)
    run(ready)
    held.hold()
    inputs = [rows(n) for n in sizes]
    with in_threads([lambda x=x: run(x) for x in inputs]) as results:
        held.wait_for(4)  # all four are compiled at once: none waits for another's end
        held.trace.append(("call", 0))
        compare(f(ready), run(ready), values=True)  # nor does a call that needs none of them
        assert not results
        held.release.set()
    assert [what for what, _ in held.trace] == ["begin"] * 4 + ["call"] + ["end"] * 4
    for number, x in enumerate(inputs):
        compare(f(x), results[number], values=True, atol=2e-5, rtol=2e-5)
    assert executables() == 5


def test_eager_while_compiling(held, executables):
    run = compiled_whole(f, buckets="auto", while_compiling="eager")
    held.hold()
    before = metrics.counter_value("EagerWhileCompiling")
    for n in (5, 7, 8):
        x = rows(n)
        compare(f(x), run(x), values=True)
    held.wait_for(1)
    assert metrics.counter_value("EagerWhileCompiling") == before + 3
    held.release.set()


def until(condition):
    """Wait for something that another thread does."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# What eager gives as views of inputs or of each other, changes in place, numbers.
EAGER = {
    "views": lambda x, total: (x, x.view(-1), x[0], (y := x + 1), y[0], y.T, x.shape[0]),
    "changes": lambda x, total: (total.add_(x.sum(0)) * 1, x.mul_(2), total),
    "branches": lambda x, total: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
    "an operator of torch's": lambda x, total: host_sine(x + 1) * 2,
}


@pytest.mark.parametrize("name", EAGER)
def test_results_in_eager_are_those_of_compiled_graphs(name, held):
    run = compiled(EAGER[name], while_compiling="eager")
    held.hold()
    for n in (5, 6):
        args = rows(n), torch.ones(11)
        theirs = [*map(torch.clone, args)]
        compare((EAGER[name](*theirs), theirs), (run(*args), args), values=True)


def test_training_in_eager_while_compiling(held):
    weight = leaf(11, 3)
    run = compiled(lambda x: (x @ weight).tanh().sum(), while_compiling="eager")
    held.hold()
    for n in (5, 6):
        x = rows(n)
        (gradient,) = torch.autograd.grad(run(x), weight)
        (expected,) = torch.autograd.grad((x @ weight).tanh().sum(), weight)
        compare(expected, gradient, values=True)
    held.wait_for(2)  # as many as there are threads, of two forwards and two backwards


def test_states_of_the_generator_are_not_mixed(executables):
    """A forward in eager would save torch's state, from which a compiled backward cannot draw."""

    def region(x):
        return torch.nn.functional.dropout(x.sin(), 0.5)

    def f(x):
        return checkpoint(region, x, use_reentrant=False).sum()

    run = compiled(f, while_compiling="eager")
    x = leaf(40, 11)
    run(x).backward()
    assert executables() == 2
    assert ((x.grad == 0) | ((x.grad - 2 * x.detach().cos()).abs() < 1e-5)).all()


def test_the_next_larger_bucket_while_compiling(held, executables):
    run = compiled_whole(f, buckets=[8, 16, 32, 64], while_compiling="larger")
    for n in (20, 40):  # the first waits, since there is nothing larger
        run(rows(n))
    assert executables() == 2
    held.hold()
    for n in (5, 9, 2):  # in the bucket of 32
        x = rows(n)
        compare(f(x), run(x), values=True, atol=2e-5, rtol=2e-5)
    held.wait_for(2)
    held.release.set()
    until(lambda: executables() == 4)
    for n in (5, 9, 2, 16):
        x = rows(n)
        compare(f(x), run(x), values=True, atol=2e-5, rtol=2e-5)
    assert executables() == 4


def test_a_larger_bucket_that_is_not_proved_below_its_sizes_does_not_stand_in(held, monkeypatch):
    def refusing(gm, sizes, symbols, *args):
        if symbols.lows[0] < 9 < symbols.sizes[0][0]:
            raise NotBounded("from 9 on")
        return lower_bounded(gm, sizes, symbols, *args)

    monkeypatch.setattr(bucketed_calls, "lower_bounded", refusing)
    run = compiled_whole(f, buckets=[8, 16], while_compiling="larger")
    run(rows(12))
    held.hold()
    x = rows(5)
    with in_threads([lambda: run(x)]) as results:
        held.wait_for(1)
        assert not results
        held.release.set()
    compare(f(x), results[0], values=True, atol=2e-5, rtol=2e-5)


def test_what_has_no_bounds_is_compiled_for_each_size_in_the_background(executables):
    def f(x):
        return x.flip(0) + 1

    run = compiled_whole(f, buckets="auto", while_compiling="eager")
    x = rows(5)

    def compiles_the_size():
        compare(f(x), run(x), values=True)
        return executables() == 1

    until(compiles_the_size)


@pytest.fixture
def logged():
    """What the log tells."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    log = logging.getLogger("xla_dynamo")
    log.addHandler(handler)
    yield messages
    log.removeHandler(handler)


def test_a_failure_in_the_background_is_raised_by_the_next_call(monkeypatch, logged):
    def fail(*args):
        raise CompileError("no memory")

    run = compiled_whole(f, buckets="auto", while_compiling="eager")
    x = rows(5)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_graph, "Executable", fail)
        run(x)
        until(lambda: any("in the background failed" in message for message in logged))
    run(rows(9))  # of another bucket
    with pytest.raises(CompileError, match=r"no memory\n.*return x.softmax\(0\) @ x.T"):
        run(x)
    compare(f(x), run(x), values=True)  # and is tried again


def test_all_who_wait_for_a_failure_are_told(monkeypatch):
    begun, fails = threading.Semaphore(0), threading.Event()

    def fail(*args):
        begun.release()
        fails.wait(TIMEOUT)
        raise CompileError("no memory")

    run = compiled_whole(f, buckets="auto")
    run(rows(20))
    monkeypatch.setattr(compiled_graph, "Executable", fail)
    with in_threads([lambda: run(rows(5))] * 2) as results:
        begun.acquire()
        fails.set()
    assert [type(error) for error in results.values()] == [CompileError] * 2


def test_a_thread_that_is_interrupted_hands_over():
    cache, begun, goes_on = ExecutableCache(4), threading.Event(), threading.Event()

    def interrupted():
        begun.set()
        goes_on.wait(TIMEOUT)
        raise KeyboardInterrupt

    def first():
        with pytest.raises(KeyboardInterrupt):
            cache.compile("key", interrupted)

    def second():
        begun.wait(TIMEOUT)
        threading.Timer(0.05, goes_on.set).start()
        return cache.compile("key", lambda: "made")

    with in_threads([first, second]) as results:
        pass
    assert results == {0: None, 1: "made"}


def test_a_call_takes_over_what_waits_in_the_queue(monkeypatch):
    """So it waits for no other compilation, however many the background has to do."""
    queue = []
    monkeypatch.setattr(background, "submit", lambda job: queue.append(job) or True)
    cache, made = ExecutableCache(4), []
    future = cache.start("key", lambda: made.append("background") or "made")
    assert cache.compile("key", lambda: made.append("call") or "made") == "made"
    assert future.result() == "made"
    queue.pop()()
    assert made == ["background"]  # once, though in the thread of the call


def test_the_process_ends_while_something_is_compiled():
    """There are more calls than threads, so some compilations have not begun: they are dropped."""
    program = """
import torch
options = {"while_compiling": "eager"}
layers = [torch.nn.Linear(64, 64) for _ in range(8)]
model = torch.nn.Sequential(*(m for layer in layers for m in (layer, torch.nn.GELU())))
run = torch.compile(model, backend="openxla", dynamic=True, options=options)
with torch.no_grad():
    for n in range(2, 2 + 64):
        run(torch.ones(n, 64))
print("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


def test_other_values_of_the_option_are_errors():
    with pytest.raises(OptionError, match="'while_compiling' must be one of"):
        Options.parse({"while_compiling": "never"})
