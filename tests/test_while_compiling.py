"""Calls do not wait in vain: each executable is compiled once, and blocks no call but its own.

Cold: Dynamo starts anew in each test. Compilations are held back by an event where a test needs to
look at what happens meanwhile, so nothing depends on how long one takes.
"""

import contextlib
import threading

import pytest
import torch

from tests.comparison import compare
from tests.compiling import compiled_whole
from xla_dynamo.execution import compiled_graph
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.executables import Executable

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


@pytest.fixture
def held(monkeypatch):
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


@pytest.mark.parametrize("buckets", [[4, 8, 16, 32, 48], "exact"])
def test_eight_threads_and_one_compilation_of_each(buckets, held, executables):
    """Two threads for each of four buckets (or sizes), and one for a fifth that is there."""
    sizes = (5, 7, 9, 12, 17, 20, 33, 40) if buckets != "exact" else (5, 5, 9, 9, 17, 17, 33, 33)
    run = compiled_whole(f, dynamic=True, buckets=buckets)
    ready = torch.randn(3, 11)
    run(ready)
    held.hold()
    inputs = [torch.randn(n, 11) for n in sizes]
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
    run = compiled_whole(f, dynamic=True, buckets="auto", while_compiling="eager")
    held.hold()
    before = metrics.counter_value("EagerWhileCompiling")
    for n in (5, 7, 8):
        x = torch.randn(n, 11)
        compare(f(x), run(x), values=True)
    held.wait_for(1)
    assert metrics.counter_value("EagerWhileCompiling") == before + 3
    held.release.set()
