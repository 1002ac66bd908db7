"""Compiled models beside other processes: workers of a DataLoader, and DistributedDataParallel."""

import contextlib
import copy
import datetime
import itertools
import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from xla_dynamo.runtime import metrics

SECONDS = 120  # after which a process that waits is taken for one that hangs
# jax, Python 3.12 and torch all warn of a fork beside threads, which is what is tested here.
forks = pytest.mark.filterwarnings("ignore:.*fork:")


class Net(nn.Sequential):
    """A module of a user, since torch does not compile the frames of its own."""

    def forward(self, x):
        return super().forward(x) * 2


def net(width=16):
    torch.manual_seed(1)
    sizes = (3, width, width, 1)
    layers = [nn.Linear(n, m) for n, m in itertools.pairwise(sizes)]
    return Net(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def affine(x):
    return (x * 2 + 1).sin()


class Rows(Dataset):
    """Rows of numbers, which a function may change in the worker."""

    def __init__(self, f=None, count=16):
        self.rows = torch.linspace(-1, 1, count * 3).reshape(count, 3)
        self.f = f

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] if self.f is None else self.f(self.rows[index])


def compiled_here(x):
    """A function that each process compiles when it first calls it."""
    return torch.compile(affine, backend="openxla")(x)


@contextlib.contextmanager
def workers(method, dataset):
    """A loader whose two workers live from the first epoch to the end of the block."""
    batches = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        multiprocessing_context=method,
        timeout=SECONDS,
        persistent_workers=True,
    )
    yield batches
    # Left to the garbage collector, which ends the queues first, this would wait for ten seconds.
    batches._iterator._shutdown_workers()


def train(model, batches, epochs=2):
    """The losses of a loop over batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(epochs):
        for x in batches:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@forks
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_training_beside_workers(method):
    """Before the fork XLA has run, and it runs on while the workers live."""
    model = net()
    twin = copy.deepcopy(model)
    ours = torch.compile(model, backend="openxla")
    rows = Rows()
    with torch.no_grad():
        torch.testing.assert_close(ours(rows.rows), model(rows.rows))
    with workers(method, rows) as batches:
        losses = train(ours, batches)
    expected = train(twin, DataLoader(rows, batch_size=4))
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))
    assert losses[-1] < losses[0]


def test_spawned_workers_compile():
    """Each worker has an XLA of its own."""
    rows = Rows(compiled_here, count=8)
    run = torch.compile(affine, backend="openxla")
    with workers("spawn", rows) as batches:
        for batch, x in zip(batches, rows.rows.split(4), strict=True):
            torch.testing.assert_close(batch, affine(x))
            torch.testing.assert_close(batch, run(x))


@forks
@pytest.mark.parametrize("known", [True, False], ids=["compiled before", "new"])
def test_forked_workers_get_an_error(known):
    """Once XLA has run in the parent: at a call, and at a compilation. Nothing hangs."""
    f = torch.compile(affine, backend="openxla")
    f(torch.ones(5))
    if known:
        f(torch.ones(3))
    else:
        f = compiled_here
        torch._dynamo.reset()
    message = r"(?s)forked from one that had used XLA.*'spawn'"
    with workers("fork", Rows(f)) as batches, pytest.raises(RuntimeError, match=message):
        next(iter(batches))


WIDE = 512  # a layer has a MB, at which DistributedDataParallel begins another bucket


def worker(rank, port, folder):
    """One of two processes: gradients of its half of the batch, by two ways to compile."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    limit = datetime.timedelta(seconds=SECONDS)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    x = Rows().rows.chunk(2)[rank]
    grads = {}
    for name, wrap in {
        "compiled inside": lambda m: DistributedDataParallel(torch.compile(m, backend="openxla")),
        "compiled outside": lambda m: torch.compile(DistributedDataParallel(m), backend="openxla"),
    }.items():
        torch._dynamo.reset()
        model, before = net(WIDE), metrics.counter_value("UncachedCompile")
        wrapped = wrap(model)
        for _ in range(2):
            model.zero_grad()
            wrapped(x).square().mean().backward()
        made = metrics.counter_value("UncachedCompile") - before
        grads[name] = made, [p.grad for p in model.parameters()]
    torch.save(grads, f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()


def test_distributed_data_parallel(tmp_path):
    """Two processes have the gradients that one has of the whole batch."""
    limit = datetime.timedelta(seconds=SECONDS)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    context = torch.multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=worker, args=(rank, store.port, tmp_path), daemon=True)
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(SECONDS)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    assert codes == [0, 0], "a process failed, or hangs if it is None"

    model = net(WIDE)
    model(Rows().rows).square().mean().backward()
    expected = [p.grad for p in model.parameters()]
    for rank in range(2):
        grads = torch.load(tmp_path / str(rank))
        for executables, got in grads.values():
            assert (
                executables == 4
            )  # Dynamo cuts the graph between buckets: two, and their gradients
            torch.testing.assert_close(got, expected)
