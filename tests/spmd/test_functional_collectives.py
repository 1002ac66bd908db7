"""torch's functional collectives in manual regions, with groups of axes and process groups."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.spmd import simulated_devices as simulated
from tests.spmd.sharding import WIDE
from tests.spmd.simulated_devices import groups_of, shards_of, whole_of
from xla_dynamo import spmd

BOTH = ("data", "model")


@pytest.fixture
def groups():
    """Process groups of as many ranks as the mesh has devices; this process is the first."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield {
        "all": dist.group.WORLD,
        "model": dist.new_group([0, 1, 2, 3]),
        "data": dist.new_group([0, 4]),
        "no axis": dist.new_group([0, 3]),
    }
    dist.destroy_process_group()


def on_shards(fn, x, results=None):
    """What a function of a sharded tensor returns: a tensor, or so many of them."""
    out = BOTH if results is None else [BOTH] * results
    mapped = spmd.shard_map(fn, WIDE, [BOTH], out)
    return torch.compile(lambda x: mapped(x), backend="openxla", fullgraph=True)(x)


def test_every_collective(groups):
    model, data = groups["model"], groups["data"]
    x = torch.randn(16, 8)

    def fn(x):
        return [
            funcol.all_reduce(x, "sum", groups["all"]),
            funcol.all_gather_tensor(x, 1, model),
            funcol.reduce_scatter_tensor(x, "avg", 0, data),
            funcol.all_to_all_single(x, None, None, data),
            funcol.all_to_all_single(x, [4, 4], [4, 4], data),
            funcol.broadcast(x, 1, model),
            *funcol.all_reduce_coalesced([x, x * 2], "max", model),
            *funcol.all_gather_into_tensor_coalesced([x], data),
            *funcol.reduce_scatter_tensor_coalesced([x], "sum", [0], data),
        ]

    given = shards_of(x.numpy(), WIDE, BOTH)
    by_model, by_data = groups_of(WIDE, "model"), groups_of(WIDE, "data")
    exchanged = simulated.all_to_all(given, by_data)
    wanted = [
        simulated.all_reduce(given, groups_of(WIDE)),
        simulated.all_gather(given, by_model, 1),
        simulated.reduce_scatter(given, by_data, "avg"),
        exchanged,
        exchanged,
        simulated.collective_broadcast(given, by_model, 1),
        simulated.all_reduce(given, by_model, "max"),
        simulated.all_reduce([p * 2 for p in given], by_model, "max"),
        simulated.all_gather(given, by_data),
        simulated.reduce_scatter(given, by_data, "sum"),
    ]
    wanted = [[torch.from_numpy(np.ascontiguousarray(p)) for p in w] for w in wanted]
    found = on_shards(fn, x, len(wanted))
    torch.testing.assert_close(found, [whole_of(w, WIDE, BOTH) for w in wanted])


GRADIENTS = {
    "all_reduce": lambda x, group: funcol.all_reduce(x, "sum", group),
    "all_gather": lambda x, group: funcol.all_gather_tensor(x, 1, group),
    "reduce_scatter": lambda x, group: funcol.reduce_scatter_tensor(x, "sum", 0, group),
    "all_to_all": lambda x, group: funcol.all_to_all_single(x, None, None, group),
    "coalesced": lambda x, group: sum(funcol.all_reduce_coalesced([x, x.sin()], "sum", group)),
}
REFERENCES = {
    "all_reduce": simulated.all_reduce,
    "all_gather": lambda x, group: simulated.all_gather(x, group, 1),
    "reduce_scatter": simulated.reduce_scatter,
    "all_to_all": simulated.all_to_all,
    "coalesced": lambda x, group: simulated.all_reduce([p + p.sin() for p in x], group),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, groups):
    x = torch.randn(16, 8, requires_grad=True)
    result = on_shards(lambda x: GRADIENTS[name](x.cos(), groups["model"]).sin(), x)
    given = [p.cos() for p in shards_of(x, WIDE, BOTH)]
    made = REFERENCES[name](given, groups_of(WIDE, "model"))
    wanted = whole_of([p.sin() for p in made], WIDE, BOTH)
    torch.testing.assert_close(result, wanted)
    weights = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad(result, x, weights)
    torch.testing.assert_close(gradient, *torch.autograd.grad(wanted, x, weights))


def test_groups_by_axes():
    """Without process groups: torch's operators with the names of axes."""
    ops, x = torch.ops._c10d_functional, torch.randn(16, 8)

    def fn(x):
        return [
            ops.wait_tensor(ops.all_reduce(x, "sum", "model")),
            ops.wait_tensor(ops.all_gather_into_tensor(x, 8, "model,data")),
        ]

    given = shards_of(x, WIDE, BOTH)
    wanted = [
        simulated.all_reduce(given, groups_of(WIDE, "model")),
        simulated.all_gather(given, groups_of(WIDE, ("model", "data"))),
    ]
    torch.testing.assert_close(on_shards(fn, x, 2), [whole_of(w, WIDE, BOTH) for w in wanted])


def test_in_place(groups):
    def fn(x):
        y = x * 1
        dist.all_reduce(y, group=groups["model"])
        return y

    x = torch.randn(16, 8)
    wanted = simulated.all_reduce(shards_of(x, WIDE, BOTH), groups_of(WIDE, "model"))
    torch.testing.assert_close(on_shards(fn, x), whole_of(wanted, WIDE, BOTH))


def test_outside_of_regions_torch_runs_them(groups, split_graphs):
    x = torch.randn(4)
    fast = torch.compile(
        lambda x: funcol.all_reduce(x.sin(), "sum", groups["all"]).cos(), backend="openxla"
    )
    torch.testing.assert_close(fast(x), x.sin().cos())  # the fake group leaves what it is given
    assert len(split_graphs) == 1


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x, g: funcol.all_reduce(x, "sum", g["no axis"]), r"the ranks \[0, 3\] .* not dev"),
        (lambda x, g: funcol.all_to_all_single(x, [5, 3], [5, 3], g["data"]), r"sizes \[5, 3\]"),
        (lambda x, g: funcol.permute_tensor(x, [1, 2, 3, 0], g["model"]), "collective_permute"),
        (
            lambda x, g: torch.ops._c10d_functional.all_gather_into_tensor(x, 2, "model"),
            "groups of 2 processes, and its group has 4 devices",
        ),
        (
            lambda x, g: torch.ops._c10d_functional.all_reduce(x, "sum", "nothing"),
            "the group 'nothing' .* is neither of axes .* nor a process group",
        ),
        (
            lambda x, g: torch.ops._c10d_functional.all_reduce(x, "median", "model"),
            "not by 'median'",
        ),
    ],
)
def test_what_is_refused(fn, message, groups):
    with pytest.raises(Exception, match=message) as raised:
        on_shards(lambda x: fn(x, groups), torch.randn(16, 8))
    assert "ShardingError" in repr(raised.value) + str(raised.value)
    assert "test_functional_collectives.py" in str(raised.value)
