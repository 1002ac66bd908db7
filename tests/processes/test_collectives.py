"""PyTorch/XLA's collectives among processes, lazy and compiled, against NumPy."""

import gc

import numpy as np
import pytest
import torch

import xla_dynamo as xm
from tests.processes.jobs import results_of

REDUCTIONS = {
    "sum": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
FRACTIONS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)
WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
SHAPES = ((3, 4), (), (0, 2), (1,))


def given(rank, dtype=torch.float32, shape=(3, 4)):
    """What a process has: few bits, so that sums in half precision are exact."""
    generator = torch.Generator().manual_seed(rank)
    high = 2 if dtype is torch.bool else 5
    return torch.randint(0, high, shape, generator=generator).to(dtype)


def reductions_there_are(dtype):
    """The reductions that a dtype has."""
    if dtype.is_complex:
        return ["sum", "mul"]
    return ["sum", "mul", "min", "max"] if dtype.is_floating_point else list(REDUCTIONS)


def reduced(kind, each, dtype):
    """The reduction of all processes' elements, by NumPy."""
    wide = dtype if dtype.is_complex or not dtype.is_floating_point else torch.float32
    arrays = [x.to(wide).numpy() for x in each]
    found = arrays[0]
    for array in arrays[1:]:
        found = REDUCTIONS[kind](found, array)
    return torch.from_numpy(np.asarray(found)).to(dtype)


def reduce_everything():
    """Each reduction of each dtype and shape: what is not as NumPy has it."""
    rank, size = xm.runtime.global_ordinal(), xm.runtime.world_size()
    wrong, wanted, made = [], [], []
    for dtype in FRACTIONS + WHOLE:
        for kind in reductions_there_are(dtype):
            for shape in SHAPES:
                each = [given(r, dtype, shape) for r in range(size)]
                made.append(xm.all_reduce(kind, each[rank].to("xla")))
                wanted.append((kind, dtype, shape, reduced(kind, each, dtype)))
    xm.sync()  # one executable with all of them
    for (kind, dtype, shape, right), one in zip(wanted, made, strict=True):
        if not torch.equal(one.cpu(), right):
            wrong.append((kind, dtype, shape, one.cpu(), right))
    return wrong


def move_everything():
    """Each collective that moves elements, lazily: names of those that are wrong."""
    rank, size = xm.runtime.global_ordinal(), xm.runtime.world_size()
    each = [given(r) for r in range(size)]
    x, total = each[rank].to("xla"), sum(each)
    several = torch.cat([x + 10 * r for r in range(size)])
    changed = [x.clone(), x[0].clone()]
    assert xm.all_reduce("sum", changed, scale=0.5) is None
    sent = x.clone()
    xm.collective_broadcast([sent], size - 1)
    into = torch.zeros(3 * size, 4, device="xla")
    # Chunks of 4 MiB, of which jaxlib once summed the first one wrongly (jax#40830).
    large = torch.arange(size << 20) % 1024
    chunk = large.chunk(size)[rank] * size + size * (size - 1) // 2
    around = [(r, (r + 1) % size) for r in range(size)]
    found = {
        "list": (changed[0], total / 2),
        "view": (changed[1], total[0] / 2),
        "broadcast": (sent, each[-1]),
        "gather": (xm.all_gather(x, -1), torch.cat(each, 1)),
        "gather list": (torch.cat(xm.all_gather([x, x])), torch.cat(each * 2)),
        "gather into": (xm.all_gather(x, output=into), torch.cat(each)),
        "scatter": (
            xm.reduce_scatter("sum", several, 2.0, 0, size),
            2 * (total + 10 * size * rank),
        ),
        "scatter much": (
            xm.reduce_scatter("sum", (large + rank).float().to("xla"), 1.0, 0, size),
            chunk.float(),
        ),
        "all to all": (
            xm.all_to_all(several, 0, 1, size),
            torch.cat([e + 10 * rank for e in each], 1),
        ),
        "permute": (xm.collective_permute(x, around), each[(rank - 1) % size]),
        "one pair": (
            xm.collective_permute(x, [(0, size - 1)]),
            each[0] if rank == size - 1 else torch.zeros(3, 4),
        ),
        "no pair": (xm.collective_permute(x, []), torch.zeros(3, 4)),
        "transposed": (xm.all_reduce("sum", x.t()), total.t()),
    }
    if size % 2 == 0:
        pairs = [[r, r + 1] for r in range(0, size, 2)]
        partners = each[rank // 2 * 2] + each[rank // 2 * 2 + 1]
        found["pairs"] = (xm.all_reduce("sum", x, groups=pairs), partners)
    return [name for name, (made, right) in found.items() if not made.cpu().equal(right)]


def compile_everything():
    """Collectives in compiled functions, of the CPU's tensors and the device's, with gradients."""
    rank, size = xm.runtime.global_ordinal(), xm.runtime.world_size()
    each = [given(r) + 1 for r in range(size)]
    wrong = []

    @torch.compile(backend="openxla", fullgraph=True)
    def exchange(x):
        total = xm.all_reduce("sum", x.sqrt())
        rows = xm.all_gather(x, 0)
        mine = xm.reduce_scatter("sum", rows * 2, 1.0, 0, size)
        return total, rows, mine, xm.collective_permute(x, [(0, 1)])

    for device in ("cpu", "xla"):
        made = exchange(each[rank].to(device))
        sent = each[0] if rank == 1 else torch.zeros(3, 4)
        right = (sum(e.sqrt() for e in each), torch.cat(each), each[rank] * 2 * size, sent)
        for name, a, b in zip(("sum", "gather", "scatter", "permute"), made, right, strict=True):
            if not torch.allclose(a.cpu(), b):
                wrong.append((device, name))
        x = each[rank].clone().to(device).requires_grad_()
        exchange(x)[0].square().sum().backward()
        # Each process's result counts, as those of the devices of a mesh do.
        right = size * 2 * sum(e.sqrt() for e in each) / (2 * each[rank].sqrt())
        if not torch.allclose(x.grad.cpu(), right):
            wrong.append((device, "gradient", x.grad.cpu(), right))
    return wrong


def forget_in_a_cycle(rank):
    """A pending value that nobody reaches, and that the first process does not collect itself."""
    gc.disable()
    knot = {"value": torch.ones(3, device="xla") * 5}
    knot["self"] = knot
    del knot
    if rank:
        gc.collect()
    total = xm.all_reduce("sum", torch.ones(2, device="xla"))
    xm.sync()
    gc.enable()
    assert total.cpu().tolist() == [xm.runtime.world_size()] * 2


def say_everything():
    """What processes tell one another, and functions that ask who they are."""
    rank, size = xm.runtime.global_ordinal(), xm.runtime.world_size()
    assert xm.get_ordinal() == rank
    assert xm.xrt_world_size() == size
    assert xm.rendezvous("here", f"{rank}") == [b"%d" % r for r in range(size)]
    assert xm.rendezvous("some", b"x", replicas=range(size)) == [b"x"] * size
    total = xm.mesh_reduce("sum", torch.tensor(rank, device="xla"), sum)
    assert total == size * (size - 1) // 2
    assert xm.do_on_ordinals(lambda a, b: a + b, (1, 2), ordinals=(1,)) == (
        3 if rank == 1 else None
    )
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, rank + 1)
    model.to("xla")
    xm.broadcast_master_param(model)
    assert model.weight.cpu().equal(torch.ones(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.full((1, 2), float(rank)).to("xla")).sum().backward()
    xm.optimizer_step(optimizer, barrier=True)
    mean = (size - 1) / 2
    torch.testing.assert_close(model.weight.detach().cpu(), torch.full((2, 2), 1 - mean))
    forget_in_a_cycle(rank)
    refused = []
    for call in (
        lambda: xm.all_reduce("sum", torch.ones(2, device="xla"), groups=[[0]]),
        lambda: xm.all_reduce("band", torch.ones(2, device="xla")).cpu(),
        lambda: xm.all_to_all(torch.ones(4, device="xla"), 0, 0, size + 1),
        lambda: xm.all_gather(torch.ones(2, device="xla"), 3),
        lambda: xm.collective_permute(torch.ones(2, device="xla"), [(0, size)]),
        lambda: xm.collective_broadcast([torch.ones(2, device="xla")], size),
        lambda: xm.all_reduce("sum", torch.ones(2)),
    ):
        try:
            call()
        except xm.ShardingError as error:
            refused.append(str(error))
    assert len(refused) == 7, refused
    return xm.is_master_ordinal()


def everything():
    return reduce_everything(), move_everything(), compile_everything(), say_everything()


def check(processes):
    for rank, result in enumerate(results_of(everything, processes)):
        assert result == ([], [], [], rank == 0)


def test_three_processes():
    check(3)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4, 5, 6])
def test_other_numbers_of_processes(processes):
    check(processes)


def everything_alone():
    """Outside of a job a collective is of one process: nothing moves."""
    x = torch.arange(4.0)
    lazy = x.to(xm.device())
    assert xm.all_reduce("sum", lazy, scale=2.0).cpu().equal(x * 2)
    assert xm.all_gather(lazy).cpu().equal(x)
    assert xm.reduce_scatter("sum", lazy, 1.0, 0, 1).cpu().equal(x)
    assert xm.all_to_all(lazy, 0, 0, 1).cpu().equal(x)
    assert xm.collective_permute(lazy, [(0, 0)]).cpu().equal(x)
    assert xm.rendezvous("alone", "x") == [b"x"]
    assert xm.mesh_reduce("alone", 3, sum) == 3
    model = torch.nn.Linear(2, 2).to("xla")
    xm.broadcast_master_param(model)
    assert xm.do_on_ordinals(lambda: 1, ordinals=(1,)) is None


def test_one_process_alone():
    results_of(everything_alone, 1)
