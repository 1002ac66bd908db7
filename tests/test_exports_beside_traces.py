"""Torch's exports change kernels for all threads: they and our traces do not meet."""

import concurrent.futures
import functools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from xla_dynamo import torch_patches
from xla_dynamo.decompositions.refused_calls import _TAKEN_APART_EARLY
from xla_dynamo.decompositions.whole_resampling import _OPERATORS, resampling_is_whole
from xla_dynamo.stablehlo import exported_program_to_stablehlo

aten = torch.ops.aten
# Torch copies descriptions of trees by their deprecated class.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
X = torch.arange(16.0).reshape(1, 1, 4, 4)


class Resizes(nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=2.0, mode="bilinear")


def tables():
    """What torch's Python dispatcher calls for the operators that we have kernels for."""
    packets = [getattr(aten, name) for name in _OPERATORS]
    ops = [op for p in packets for op in (p.default, p.vec)]
    ops += [getattr(aten, f"{name}_backward").default for name in _OPERATORS]
    return {op: dict(op.py_kernels) for op in (*ops, *_TAKEN_APART_EARLY)}


def cached():
    """What it remembers to have chosen that its tables do not have."""
    known = {op: {*op.py_kernels.values()} for op in tables()}
    chosen = [(op, k, v) for op in known for k, v in op._dispatch_cache.items()]
    return [one for one in chosen if callable(one[2]) and one[2] not in known[one[0]]]


def in_two_threads(first, second, times):
    """What is raised where two functions run again and again in two threads."""
    errors, together = [], threading.Barrier(2)

    def often(function):
        together.wait(60)
        for _ in range(times):
            try:
                function()
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=often, args=(f,)) for f in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@functools.cache
def exported():
    return torch.export.export(Resizes(), (X,))


def torch_decomposes():
    found = exported().run_decompositions()
    torch.testing.assert_close(found.module()(X), Resizes()(X))


def we_export():
    found = exported_program_to_stablehlo(exported())
    torch.testing.assert_close(found(X), Resizes()(X))


def torch_exports():
    torch.export.export(Resizes(), (X,)).run_decompositions()


def we_compile():
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    y = torch.compile(Resizes(), backend="openxla")(x)
    torch.testing.assert_close(y, Resizes()(X))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(x, 4.0))


@pytest.mark.parametrize("export", [torch_decomposes, we_export])
@pytest.mark.parametrize("times", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_one_thread_exports_and_another_compiles(cold, export, times):
    we_compile()
    export()
    before = tables()
    assert not in_two_threads(export, we_compile, times)
    assert tables() == before
    assert not cached()


# Torch tells all threads when one exports.
@pytest.mark.filterwarnings("ignore:.*inside torch.export region")
@pytest.mark.parametrize("other", [we_compile, torch_exports])
def test_one_thread_makes_programs(cold, other):
    other()
    before = tables()
    assert not in_two_threads(torch_exports, other, 4)
    assert tables() == before
    assert not torch.compiler.is_exporting()
    assert not torch.compiler.is_compiling()


def in_a_thread(function):
    """The future of what a function returns in a thread of its own."""
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def we_trace():
    with resampling_is_whole():
        pass


def test_who_waits_for_whom():
    """Traces overlap; an export waits for them, and holds no lock meanwhile; then it is alone."""

    def exports():
        with torch_patches.exporting_alone():
            alone.set()
            assert may_end.wait(60)

    alone, may_end = threading.Event(), threading.Event()
    with resampling_is_whole():
        exported = in_a_thread(exports)
        assert not alone.wait(0.1)
        in_a_thread(we_trace).result(60)
        with torch_patches.compile_lock:
            pass
        in_a_thread(we_compile).result(60)
        with torch_patches.exporting_alone():  # within a trace of one's own
            in_a_thread(we_trace).result(60)
    assert alone.wait(60)
    others = in_a_thread(we_trace), in_a_thread(we_compile)
    assert not concurrent.futures.wait(others, timeout=0.2).done
    may_end.set()
    for future in (exported, *others):
        future.result(60)


def test_an_export_may_trace():
    with torch_patches.exporting_alone(), torch_patches.exporting_alone():
        we_compile()


def test_the_gate_is_open_after_an_error():
    with pytest.raises(KeyError), torch_patches.exporting_alone():
        raise KeyError
    with pytest.raises(KeyError), torch_patches.tracing():
        raise KeyError
    in_a_thread(torch_exports).result(60)
    in_a_thread(we_compile).result(60)
