"""Collectives of torch.distributed in all their forms: what each leaves in a process's tensors.

Each function takes the rank, the number of processes and the function that moves a tensor to the
device, and returns tensors. Gloo on tensors of the CPU says what is right.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

FORMS = {}
# Forms that Gloo does not have; `by_hand` says what is right.
ALONE = {}
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX")
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int64)


def form(function):
    FORMS[function.__name__] = function
    return function


def of_rank(rank, *shape):
    """What a process has."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32).reshape(shape) + 1) * (rank + 1)


@form
def all_reduce(rank, size, put):
    made = []
    for name in REDUCTIONS:
        made.append(put(of_rank(rank, 3, 4)))
        dist.all_reduce(made[-1], getattr(dist.ReduceOp, name))
    for name in ("BAND", "BOR", "BXOR"):
        made.append(put(of_rank(rank, 3, 4).int()))
        dist.all_reduce(made[-1], getattr(dist.ReduceOp, name))
    return made


@form
def dtypes(rank, size, put):
    made = [put(of_rank(rank, 5).to(dtype)) for dtype in DTYPES]
    for t in made:
        dist.all_reduce(t)
    return made


@form
def empty_and_scalars(rank, size, put):
    made = [put(of_rank(rank, 0, 3)), put(of_rank(rank, 1)[0])]
    for t in made:
        dist.all_reduce(t)
    return made


@form
def work_handles(rank, size, put):
    t = put(of_rank(rank, 3))
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    assert work.is_completed()
    return [t]


@form
def broadcast(rank, size, put):
    t = put(of_rank(rank, 3))
    dist.broadcast(t, src=size - 1)
    return [t]


@form
def reduce(rank, size, put):
    t = put(of_rank(rank, 3))
    dist.reduce(t, dst=1)
    return [t] if rank == 1 else []


@form
def all_gather(rank, size, put):
    places = [put(torch.zeros(2, 3)) for _ in range(size)]
    dist.all_gather(places, put(of_rank(rank, 2, 3)))
    one = put(torch.zeros(2 * size, 3))
    dist.all_gather_into_tensor(one, put(of_rank(rank, 2, 3)))
    return [*places, one]


@form
def reduce_scatter(rank, size, put):
    one, other = put(torch.zeros(2, 3)), put(torch.zeros(2, 3))
    dist.reduce_scatter_tensor(one, put(of_rank(rank, 2 * size, 3)))
    dist.reduce_scatter(other, [put(of_rank(rank, 2, 3) + i) for i in range(size)])
    return [one, other]


@form
def gather_and_scatter(rank, size, put):
    places = [put(torch.zeros(2)) for _ in range(size)] if rank == 0 else None
    dist.gather(put(of_rank(rank, 2)), places, dst=0)
    one = put(torch.zeros(2))
    rows = [put(of_rank(rank, 2) + i) for i in range(size)] if rank == 1 else None
    dist.scatter(one, rows, src=1)
    return [*(places or []), one]


@form
def all_to_all(rank, size, put):
    even = put(torch.zeros(2 * size, 3))
    dist.all_to_all_single(even, put(of_rank(rank, 2 * size, 3)))
    given, taken = [rank + 1] * size, [r + 1 for r in range(size)]
    uneven = put(torch.zeros(sum(taken), 3))
    dist.all_to_all_single(uneven, put(of_rank(rank, sum(given), 3)), taken, given)
    return [even, uneven]


@form
def objects(rank, size, put):
    found, sent = [None] * size, [{"rank": rank}]
    dist.all_gather_object(found, {"rank": rank})
    dist.broadcast_object_list(sent, src=1)
    return [torch.tensor([one["rank"] for one in (*found, *sent)])]


@form
def point_to_point(rank, size, put):
    t = put(of_rank(rank, 3))
    if rank == 0:
        dist.send(t, 1)
    elif rank == 1:
        dist.recv(t, 0)
    taken = put(torch.zeros(2))
    around = [
        dist.P2POp(dist.isend, put(of_rank(rank, 2)), (rank + 1) % size),
        dist.P2POp(dist.irecv, taken, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(around):
        work.wait()
    return [t, taken]


@form
def groups(rank, size, put):
    group = dist.new_group([0, 1])
    t = put(of_rank(rank, 3))
    if rank < 2:
        dist.all_reduce(t, group=group)
        dist.barrier(group)
    dist.barrier()
    return [t]


@form
def functional(rank, size, put):
    world = dist.group.WORLD
    return [
        funcol.all_reduce(put(of_rank(rank, 3)), "sum", world) + 1,
        funcol.all_gather_tensor(put(of_rank(rank, 2, 2)), 1, world),
        funcol.reduce_scatter_tensor(put(of_rank(rank, size, 2)), "avg", 0, world)
        if put(torch.ones(1)).device.type != "cpu"
        else of_rank(0, size, 2)[rank : rank + 1] * (size + 1) / 2,
    ]


@form
def dtensors(rank, size, put):
    kind = put(torch.ones(1)).device.type
    mesh = init_device_mesh(kind, (size,))
    torch.manual_seed(0)
    a, b = torch.randn(4 * size, 6), torch.randn(6, 2 * size)
    rows = distribute_tensor(put(a), mesh, [Shard(0)])
    product = rows @ distribute_tensor(put(b), mesh, [Replicate()])
    columns = product.redistribute(mesh, [Shard(1)])
    return [product.full_tensor(), columns.to_local(), product.sum().full_tensor()]


def alone(function):
    ALONE[function.__name__] = function
    return function


@alone
def average(rank, size, put):
    t = put(of_rank(rank, 3))
    dist.all_reduce(t, dist.ReduceOp.AVG)
    return [(t, of_rank(0, 3) * (size + 1) / 2)]


@alone
def strided(rank, size, put):
    base = put(of_rank(rank, 4, 6))
    dist.all_reduce(base.t()[1:3])
    right = of_rank(rank, 4, 6)
    right[:, 1:3] = of_rank(0, 4, 6)[:, 1:3] * (size * (size + 1) / 2)
    return [(base, right)]


@alone
def stacked_gather(rank, size, put):
    place = put(torch.zeros(size, 2, 3))
    dist.all_gather_into_tensor(place, put(of_rank(rank, 2, 3)))
    return [(place, torch.stack([of_rank(r, 2, 3) for r in range(size)]))]


@alone
def uneven_gather(rank, size, put):
    places = [put(torch.zeros(r + 1, 3)) for r in range(size)]
    dist.all_gather(places, put(of_rank(rank, rank + 1, 3)))
    return [(place, of_rank(r, r + 1, 3)) for r, place in enumerate(places)]


@alone
def lists_to_all(rank, size, put):
    places = [put(torch.zeros(r + 1)) for r in range(size)]
    dist.all_to_all(places, [put(of_rank(rank, rank + 1) + i) for i in range(size)])
    return [(place, of_rank(r, r + 1) + rank) for r, place in enumerate(places)]


@alone
def coalesced(rank, size, put):
    made = [put(of_rank(rank, 3)), put(of_rank(rank, 2, 2))]
    with contextlib.ExitStack() as stack:
        manager = dist._coalescing_manager(device=made[0].device, async_ops=True)
        works = stack.enter_context(manager)
        for t in made:
            dist.all_reduce(t)
    works.wait()
    total = size * (size + 1) / 2
    return [(made[0], of_rank(0, 3) * total), (made[1], of_rank(0, 2, 2) * total)]


@alone
def refused(rank, size, put):
    """What is wrong in every process by itself is an error of Python, and nothing is exchanged."""
    world, x = dist.group.WORLD, put(of_rank(rank, 3))
    for method, kind in (
        ("broadcast", dist.BroadcastOptions),
        ("reduce", dist.ReduceOptions),
        ("gather", dist.GatherOptions),
        ("scatter", dist.ScatterOptions),
    ):
        options = kind()
        options.rootRank = size
        lists = [[x] * size] if method in ("gather", "scatter") else []
        given = [lists, [x]] if method == "gather" else [[x], *([lists] if lists else [])]
        with pytest.raises(ValueError, match="invalid root rank"):
            getattr(world, method)(*given, options)
    for gather in (dist.all_gather_into_tensor, dist.reduce_scatter_tensor):
        with pytest.raises(ValueError, match="size"):
            gather(x, x.clone()) if size > 1 else gather(x[:1], x)
        with pytest.raises(TypeError, match="same type"):
            gather(x, x.int())
    place = put(torch.zeros(3 * size))
    world._allgather_base(place, x).wait()  # with no options
    return [(place, torch.cat([of_rank(r, 3) for r in range(size)]))]


@alone
def short_forms(rank, size, put):
    """A tensor instead of a list of one, and a root or a reduction instead of options."""
    world, last, total = dist.group.WORLD, size - 1, size * (size + 1) / 2
    every = [of_rank(r, 3) for r in range(size)]
    a, b, c, d = (put(of_rank(rank, 3)) for _ in range(4))
    places = [put(torch.zeros(3)) for _ in range(size)]
    world.gather(places if rank == last else [], put(of_rank(rank, 3)), last).wait()
    world.scatter(a, [put(t) for t in every] if rank == last else [], last).wait()
    world.reduce_scatter(b, [put(of_rank(rank, 3)) for _ in range(size)], dist.ReduceOp.MAX).wait()
    world.reduce(c, last, dist.ReduceOp.SUM).wait()
    world.broadcast(d, last).wait()
    summed = of_rank(0, 3) * total if rank == last else of_rank(rank, 3)
    found = [(a, every[rank]), (b, every[last]), (c, summed), (d, every[last])]
    return found + (list(zip(places, every, strict=True)) if rank == last else [])


@alone
def to_oneself(rank, size, put):
    """The receipt comes first, as in a list of sends and receipts for all ranks."""
    places = [put(torch.zeros(3)), put(torch.zeros(2))]
    sent = [of_rank(rank, 3), of_rank(rank, 2)]
    operations = [dist.P2POp(dist.irecv, place, rank) for place in places]
    operations += [dist.P2POp(dist.isend, put(t), rank) for t in sent]
    for work in reversed(dist.batch_isend_irecv(operations)):
        work.wait()
    return list(zip(places, sent, strict=True))
