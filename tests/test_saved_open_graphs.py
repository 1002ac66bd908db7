"""Graphs of dynamic sizes in the disk cache. Each test begins cold, with a folder of its own."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.comparison import compare
from tests.runtime.disk_caches import cache_in, logged
from xla_dynamo import backend, metrics
from xla_dynamo.execution import graph_keys
from xla_dynamo.graphs.source_graph import SourceGraph


@pytest.fixture(autouse=True)
def no_rules_of_other_tests(monkeypatch):
    """Rules that other files of tests register for torch's operators would leave no key."""
    ours = {k: v for k, v in graph_keys.REGISTERED_IN.items() if v.startswith("xla_dynamo.")}
    monkeypatch.setattr(graph_keys, "REGISTERED_IN", ours)


@pytest.fixture
def traces(monkeypatch):
    """How many of Dynamo's graphs were compiled from their beginning."""
    count = []
    compile_torch_graph = backend.compile_torch_graph

    def counting(*args, **kwargs):
        compiled = compile_torch_graph(*args, **kwargs)
        count.append(1)  # not where torch begins anew, since a number is no size
        return compiled

    monkeypatch.setattr(backend, "compile_torch_graph", counting)
    return lambda: len(count)


@pytest.fixture
def reads(monkeypatch):
    """How many graphs were read from their files."""
    count = []
    gm = SourceGraph.__dict__["gm"].func

    def counting(self):
        count.append(1)
        return gm(self)

    monkeypatch.setattr(SourceGraph.__dict__["gm"], "func", counting)
    return lambda: len(count)


def check(f, make, sizes, dynamic=None, **options):
    """Compile anew, as in a new process, and compare with eager at each size."""
    torch._dynamo.reset()
    run = torch.compile(f, backend="openxla", dynamic=dynamic, options=options or None)
    for n in sizes:
        args = make(n)
        compare(f(*args), run(*args), values=True, atol=2e-5, rtol=2e-5)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, ids):
        x = self.embed(ids) + torch.arange(ids.shape[1]).unsqueeze(-1) * 0.01
        q = x.view(ids.shape[0], -1, 2, 8).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        return {"logits": self.out(self.norm(x))[:, -3:], "pooled": (x.mean(1), ids.shape[1])}


def ids(n):
    return [torch.randint(50, (2, n))]


CASES = {
    "encoder": (Encoder, ids, {}),
    "exact": (Encoder, ids, {"buckets": "exact"}),
    "not bounded": (lambda: lambda x: x.flip(1) * x.shape[1], lambda n: [torch.randn(2, n)], {}),
    "convolution": (
        lambda: nn.Conv2d(3, 4, 3),
        lambda n: [torch.randn(n, 3, 5, 5)],
        {"buckets": "auto"},
    ),
    "two sizes": (
        lambda: lambda x, y: torch.cat([x, y]).softmax(0) * (x.shape[0] - 1),
        lambda n: [torch.randn(n, 3), torch.randn(n + 3, 3)],
        {},
    ),
    "random numbers": (
        lambda: lambda x: x + torch.rand_like(x) * 0,
        lambda n: [torch.randn(n)],
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_graph_is_found_again(tmp_path, name, traces, reads, executables):
    """Neither traced nor lowered; a size whose program is not saved is lowered from the file."""
    make_model, make, options = CASES[name]
    model = make_model()
    with cache_in(tmp_path), torch.no_grad():
        check(model, make, (5, 7, 9, 40), **options)
        known, compiled = traces(), executables()
        check(model, make, (5, 7, 9, 40), **options)
        assert traces() == known
        if name == "convolution":  # executables that call oneDNN are not saved
            return
        assert executables() == compiled
        before = reads()
        check(model, make, (5, 7, 9, 90), **options)
        assert (traces(), executables()) == (known, compiled + 1)
        assert reads() == before + 1
        check(model, make, (5, 7, 90), **options)
        assert executables() == compiled + 1
    assert metrics.counter_value("PersistentCacheGraphHit") >= 3


@pytest.mark.parametrize("buckets", ["auto", "exact"])
def test_rows_are_written_by_a_graph_that_is_found_again(tmp_path, traces, executables, buckets):
    """The operator is ours, and its effects are saved beside the graph, in their order."""

    def f(x, index, rows):
        before = x.index_select(0, index) * 2
        torch.ops.xla.write_rows(x, index, rows + 1)
        torch.ops.xla.write_rows(x, index[:2], rows[:2])
        return before, rows * 3

    def run():
        torch._dynamo.reset()
        fast = torch.compile(f, backend="openxla", dynamic=True, options={"buckets": buckets})
        for n in (5, 9, 40):
            x, index, rows = torch.randn(64, 2), torch.randperm(64)[:n], torch.randn(n, 2)
            like = x.clone()
            compare(f(like, index, rows), fast(x, index, rows), values=True, atol=0, rtol=0)
            assert torch.equal(x, like)

    with cache_in(tmp_path), torch.no_grad():
        run()
        known = traces(), executables()
        run()
        assert (traces(), executables()) == known
    assert metrics.counter_value("PersistentCacheGraphHit") == 1


def test_the_first_size_need_not_be_the_same(tmp_path, traces):
    model = Encoder()
    with cache_in(tmp_path), torch.no_grad():
        check(model, ids, (5, 7), dynamic=True)
        check(model, ids, (9, 40, 6), dynamic=True)
    assert traces() == 1


def test_guards_of_the_trace_are_put_on_again(tmp_path, traces):
    """What Dynamo's trace alone does not ask: AOTAutograd decides it by the present sizes."""

    def f(x):
        return x.sum(0) * (1 if x.shape[0] < 8 else 2)

    def rows(n):
        return [torch.randn(n, 3)]

    with cache_in(tmp_path), torch.no_grad():
        check(f, rows, (5, 6), dynamic=True)
        check(f, rows, (9, 12, 5, 7), dynamic=True)
        assert traces() == 2
        check(f, rows, (6, 12, 9, 7), dynamic=True)
        assert traces() == 2


def test_guards_that_are_not_kept(tmp_path, monkeypatch, traces):
    with cache_in(tmp_path), torch.no_grad(), logged(logging.INFO) as messages:
        with monkeypatch.context() as patched:
            patched.setattr(backend, "guards_on_sizes", lambda gm: "L['t0'] > 5")
            check(lambda x: x.sin(), lambda n: [torch.randn(n)], (6, 7), dynamic=True)
        check(lambda x: x.sin(), lambda n: [torch.randn(n)], (4, 7), dynamic=True)
        assert traces() == 2
        assert any("traced for other sizes" in message for message in messages)
        patched.setattr(backend, "guards_on_sizes", lambda gm: "L['t0'] > 5")
        check(lambda x: x.cos(), lambda n: [torch.randn(n)], (6, 7), dynamic=True)
        check(lambda x: x.cos(), lambda n: [torch.randn(n)], (6, 7, 4), dynamic=True)
        assert traces() == 4, "the guard is one of the new process, too, and 4 does not keep it"


@pytest.mark.parametrize("damage", [b"", b"[1, 2]", b'[{"dict": []}, {}]'])
def test_an_entry_of_another_form_is_not_used(tmp_path, damage, traces):
    with cache_in(tmp_path) as folder, torch.no_grad():
        check(torch.sin, lambda n: [torch.randn(n)], (5, 6), dynamic=True)
        (entry,) = tmp_path.glob("graph-*")
        folder.write("graph", entry.name.partition("-")[2], damage)
        check(torch.sin, lambda n: [torch.randn(n)], (5, 6), dynamic=True)
    assert traces() == 2


LEFT_OUT = {
    "changes its input": lambda x: x.add_(1),
    "gives a view of its input": lambda x: (x[1:], x + 1),
    "a remainder": lambda x: x.sum(0) + torch.ones(x.shape[0] // 2).sum(),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_right_all_the_same(tmp_path, name, traces):
    with cache_in(tmp_path), torch.no_grad():
        for number in (1, 2):
            torch._dynamo.reset()
            run = torch.compile(LEFT_OUT[name], backend="openxla", dynamic=True)
            for n in (5, 6):
                x = torch.randn(n, 3)
                compare(LEFT_OUT[name](x.clone()), run(x), values=True)
            assert traces() == number
