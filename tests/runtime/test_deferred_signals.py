"""Handlers of signals wait for a function, and run after it."""

import asyncio
import signal
import threading

import pytest

from xla_dynamo.runtime.cpu import deferred_signals
from xla_dynamo.runtime.cpu.deferred_signals import after_signals


@pytest.fixture
def seen():
    """The signals that a handler of SIGUSR1 saw, which raises at the first one."""
    numbers = []

    def handler(number, frame):
        numbers.append(number)
        if len(numbers) == 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    yield numbers
    signal.signal(signal.SIGUSR1, before)


def test_they_run_when_it_is_over(seen):
    handler, inside = signal.getsignal(signal.SIGUSR1), []

    def work(times):
        for _ in range(times):
            signal.raise_signal(signal.SIGUSR1)
            inside.append(list(seen))

    with pytest.raises(KeyboardInterrupt):
        after_signals(work)(3)
    assert inside == [[], [], []]
    assert seen == [signal.SIGUSR1]  # as Python itself: once, however often it came
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_each_runs_where_another_raises(seen):
    others = []
    before = signal.signal(signal.SIGUSR2, lambda *_: others.append(list(seen)))

    def work():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)

    try:
        with pytest.raises(KeyboardInterrupt):
            after_signals(work)()
        assert others == [[signal.SIGUSR1]]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_an_event_loop_sees_each_once():
    seen = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, seen.append, signal.SIGUSR1)
        after_signals(signal.raise_signal)(signal.SIGUSR1)
        await asyncio.sleep(0.05)
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(main())
    assert seen == [signal.SIGUSR1]


def test_results_and_errors_come_through(seen):
    assert after_signals(lambda x: x + 1)(2) == 3
    with pytest.raises(ZeroDivisionError):
        after_signals(lambda x: 1 / x)(0)
    assert not seen


def test_other_threads_have_none(seen):
    made = []
    run = after_signals(lambda: made.append(signal.getsignal(signal.SIGUSR1)))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert made == [signal.getsignal(signal.SIGUSR1)]


def test_all_are_restored_where_one_raises_meanwhile(seen, monkeypatch):
    usr2 = signal.signal(signal.SIGUSR2, lambda *_: None)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGUSR2)}
    set_, order = signal.signal, []

    def interrupted(number, handler):
        set_(number, handler)
        order.append(number)
        if len(order) == 1:
            signal.raise_signal(signal.SIGUSR1)

    for number in handlers:
        set_(number, lambda *_: None)
    monkeypatch.setattr(signal, "signal", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            deferred_signals._restore(handlers)
        assert {n: signal.getsignal(n) for n in handlers} == handlers
    finally:
        set_(signal.SIGUSR2, usr2)


def test_handlers_are_those_in_python(seen):
    """`_signal` is CPython's own: see `_handlers`."""
    found = deferred_signals._handlers()
    assert found[signal.SIGUSR1] is signal.getsignal(signal.SIGUSR1)
    assert all(callable(signal.getsignal(n)) for n in found)
