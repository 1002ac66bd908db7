"""Several threads: the first lookup, the first training steps, and what one sees of another."""

import threading

import torch
from torch import nn

import xla_dynamo
from tests.compiling import compiled
from tests.fresh_process import python
from xla_dynamo.torch_threads import tracing_here


def test_first_lookups_by_name_at_once():
    """All threads have loaded the entry point before one registers it."""
    out = python(
        """
        import importlib.metadata, threading
        import torch

        together = threading.Barrier(3)
        load = importlib.metadata.EntryPoint.load

        def load_together(self):
            found = load(self)
            together.wait(60)
            return found

        importlib.metadata.EntryPoint.load = load_together
        found = []

        def look_up(n):
            try:
                f = torch.compile(lambda x: x + n, backend="openxla")
                found.append(f(torch.zeros(1)).item())
            except BaseException as error:
                found.append(repr(error))

        threads = [threading.Thread(target=look_up, args=(n,)) for n in (1, 2, 3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(sorted(found), "openxla" in torch._dynamo.list_backends())

        @torch._dynamo.register_backend(name="mine")
        def mine(gm, inputs):
            return gm

        try:
            torch._dynamo.register_backend(lambda gm, inputs: gm, name="mine")
        except AssertionError as error:
            print(error)
        """
    )
    assert out.splitlines() == ["[1.0, 2.0, 3.0] True", "duplicate name: mine"]


def test_first_training_steps_at_once():
    out = python(
        """
        import threading
        import torch
        import xla_dynamo

        def make(n):
            torch.manual_seed(n)
            layers = torch.nn.Linear(3, 4 + n), torch.nn.Tanh(), torch.nn.Linear(4 + n, 1)
            model = torch.nn.Sequential(*layers).double()
            return model, torch.optim.Adam(model.parameters())

        def loss_fn(model, x):
            return model(x).square().mean()

        x = torch.ones(5, 3, dtype=torch.float64)
        made, found = [make(n) for n in range(4)], {}
        together = threading.Barrier(4)

        def train(n):
            model, optimizer = made[n]
            together.wait(60)
            try:
                step = xla_dynamo.train_step(model, loss_fn, optimizer)
                found[n] = [step(x).item() for _ in range(3)]
            except BaseException as error:
                found[n] = repr(error)

        threads = [threading.Thread(target=train, args=(n,)) for n in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for n in range(4):
            model, optimizer = make(n)
            expected = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = loss_fn(model, x)
                loss.backward()
                optimizer.step()
                expected.append(loss.item())
            close = isinstance(found[n], list) and all(
                abs(a - e) < 1e-9 for a, e in zip(found[n], expected)
            )
            print(close or found[n])
        print(torch.compiler.is_compiling())
        """
    )
    assert out.splitlines() == ["True"] * 4 + ["False"]


def test_a_thread_does_not_see_that_another_one_traces():
    is_traced, may_go_on, seen = threading.Event(), threading.Event(), []

    class Waits(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(bool(torch.compiler.is_compiling()))
            is_traced.set()
            assert may_go_on.wait(60)
            return super().step(closure)

    f = compiled(nn.Linear(3, 3))
    f(torch.zeros(2, 3))
    model = nn.Linear(3, 1)
    step = xla_dynamo.train_step(model, lambda m, x: m(x).sum(), Waits(model.parameters(), 0.1))
    thread = threading.Thread(target=step, args=(torch.zeros(2, 3),))
    thread.start()
    try:
        assert is_traced.wait(60)
        assert not torch.compiler.is_compiling()
        assert f(torch.zeros(2, 3)).shape == (2, 3)  # torch refuses that in a trace of its own
        other = nn.Linear(3, 3)
        other(torch.zeros(2, 3)).sum().backward()
        torch.optim.Adam(other.parameters(), capturable=False).step()
    finally:
        may_go_on.set()
        thread.join()
    assert seen == [True]
    assert not torch.compiler.is_compiling()


def test_flags_of_traces_that_overlap_do_not_add_up():
    """Each trace begins before the last one ends, in threads that take turns."""
    assert torch.compiler._is_compiling_flag is False
    last = tracing_here()
    last.__enter__()
    for _ in range(5000):
        following = tracing_here()
        following.__enter__()
        last.__exit__(None, None, None)
        last = following
        assert not torch.compiler.is_compiling()
    last.__exit__(None, None, None)
    assert torch.compiler._is_compiling_flag is False
