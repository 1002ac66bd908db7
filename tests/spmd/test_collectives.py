"""Collectives in manual regions against NumPy, and their gradients against one device's."""

import re

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from tests.spmd import simulated_devices as simulated
from tests.spmd.sharding import ONE_AXIS, TALL, WIDE
from tests.spmd.simulated_devices import groups_of, shards_of
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower import lower

PERMUTED = spmd.Mesh([5, 2, 7, 0, 3, 6, 1, 4], (2, 4), ("data", "model"))
# By name: a mesh, and how a collective names groups on it.
LAYOUTS = {
    "8": (ONE_AXIS, {"axis": "x"}),
    "2x4 all": (WIDE, {}),
    "2x4 data": (WIDE, {"axis": "data"}),
    "2x4 model": (WIDE, {"axis": 1}),
    "2x4 model data": (WIDE, {"axis": ("model", "data")}),
    "4x2 data": (TALL, {"axis": "data"}),
    "4x2 model": (TALL, {"axis": "model"}),
    "permuted model": (PERMUTED, {"axis": "model"}),
    "permuted model data": (PERMUTED, {"axis": ("model", "data")}),
    "groups of 4": (WIDE, {"groups": [[6, 1, 0, 3], [2, 5, 4, 7]]}),
    "permuted groups of 2": (PERMUTED, {"groups": [[0, 5], [4, 1], [2, 3], [7, 6]]}),
    "groups of 1": (ONE_AXIS, {"groups": [[i] for i in range(8)]}),
}
in_layouts = pytest.mark.parametrize("layout", LAYOUTS)
FRACTIONS = ("sum", "avg", "product", "min", "max")
BITS = ("band", "bor", "bxor")


def on_shards(fn, mesh, x, results):
    """What a function of a tensor, whose rows all axes shard, returns: so many results."""
    spec = (mesh.axis_names, None)
    mapped = spmd.shard_map(fn, mesh, [spec], [spec] * results)
    return torch.compile(mapped, backend="openxla", fullgraph=True)(x)


def numpy_shards(x, mesh):
    return shards_of(x.numpy(), mesh, (mesh.axis_names, None))


def joined(shards):
    return torch.from_numpy(np.concatenate(shards))


@in_layouts
def test_reductions(layout):
    mesh, group = LAYOUTS[layout]
    size = len(groups_of(mesh, _named(group), group.get("groups"))[0])
    x = torch.randn(8 * 8, 3)

    def fn(x):
        made = [spmd.all_reduce(x, kind, **group) for kind in FRACTIONS]
        return made + [spmd.reduce_scatter(x, kind, **group) for kind in FRACTIONS]

    actual = on_shards(fn, mesh, x, 10)
    places = groups_of(mesh, _named(group), group.get("groups"))
    given = numpy_shards(x, mesh)
    wanted = [simulated.all_reduce(given, places, kind) for kind in FRACTIONS]
    wanted += [simulated.reduce_scatter(given, places, kind) for kind in FRACTIONS]
    assert actual[5].shape == (64 // size, 3)
    torch.testing.assert_close(actual, [joined(w) for w in wanted])


def _named(group):
    axis = group.get("axis")
    return "model" if axis == 1 else axis


@in_layouts
def test_movements(layout):
    mesh, group = LAYOUTS[layout]
    places = groups_of(mesh, _named(group), group.get("groups"))
    size = len(places[0])
    x = torch.randn(8 * 8, 8)

    def fn(x):
        return [
            spmd.all_gather(x, **group),
            spmd.all_gather(x, -1, **group),
            spmd.reduce_scatter(x, "sum", 1, **group),
            spmd.all_to_all(x, 0, 1, **group),
            spmd.all_to_all(x, 1, 1, **group),
            spmd.collective_broadcast(x, size - 1, **group),
        ]

    given = numpy_shards(x, mesh)
    wanted = [
        simulated.all_gather(given, places),
        simulated.all_gather(given, places, 1),
        simulated.reduce_scatter(given, places, "sum", 1),
        simulated.all_to_all(given, places, 0, 1),
        simulated.all_to_all(given, places, 1, 1),
        simulated.collective_broadcast(given, places, size - 1),
    ]
    torch.testing.assert_close(on_shards(fn, mesh, x, len(wanted)), [joined(w) for w in wanted])


PERMUTATIONS = {
    "ring": [(0, 1), (1, 2), (2, 3), (3, 0)],
    "some": [(3, 0), (1, 1)],
    "none": [],
}


@pytest.mark.parametrize("mesh", [WIDE, PERMUTED], ids=["2x4", "permuted"])
@pytest.mark.parametrize("pairs", PERMUTATIONS)
def test_permutations(mesh, pairs):
    x, pairs = torch.randn(16, 3), PERMUTATIONS[pairs]

    def fn(x):
        whole = spmd.collective_permute(x, [(0, 5), (7, 2)])  # device ids
        return [spmd.collective_permute(x, pairs, "model"), whole]

    given = numpy_shards(x, mesh)
    ids = [(mesh.device_ids.index(a), mesh.device_ids.index(b)) for a, b in [(0, 5), (7, 2)]]
    wanted = [
        simulated.collective_permute(given, groups_of(mesh, "model"), pairs),
        simulated.collective_permute(given, groups_of(mesh), ids),
    ]
    torch.testing.assert_close(on_shards(fn, mesh, x, len(wanted)), [joined(w) for w in wanted])


@pytest.mark.parametrize("mesh", [WIDE, PERMUTED], ids=["2x4", "permuted"])
def test_places(mesh):
    def fn():
        return [spmd.axis_index(a).reshape(1) for a in ("data", "model", ("model", "data"))]

    spec = (("data", "model"),)
    found = torch.compile(
        spmd.shard_map(fn, mesh, [], [spec] * 3), backend="openxla", fullgraph=True
    )()
    data, model = np.indices((2, 4))
    wanted = [data, model, model * 2 + data]
    torch.testing.assert_close(found, [torch.from_numpy(w.reshape(-1)) for w in wanted])


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_what_is_written(platform):
    """XLA:CPU has no collective-broadcast; elsewhere the first of a group is the source."""
    spec = ("data", "model")
    mapped = spmd.shard_map(
        lambda x: [spmd.collective_broadcast(x, 2, "model"), spmd.all_reduce(x, axis="data")],
        WIDE,
        [spec],
        [spec] * 2,
    )
    texts = []

    def backend(gm, inputs):
        program = lower(gm, static_values(gm), Target(platform, partitions=8), Request(mesh=WIDE))
        assert program.module.operation.verify()
        texts.append(str(program.module))
        return gm.forward

    with pytest.raises(ShardingError):  # it is eager code that runs
        torch.compile(
            lambda x: mapped(x), backend=aot_autograd(fw_compiler=backend), fullgraph=True
        )(torch.randn(16, 8))
    (text,) = texts
    assert ("collective_broadcast" in text) == (platform == "cuda")
    assert platform == "cpu" or "[2, 3, 0, 1], [6, 7, 4, 5]" in text
    channels = re.findall(r"handle = (\d+)", text)
    assert len(channels) == len(set(channels)) == 2


# --- dtypes ----------------------------------------------------------------------------------

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def kinds_of(dtype):
    if dtype.is_complex:
        return ("sum", "avg", "product")
    if dtype is torch.bool:
        return ("sum", "product", "min", "max", *BITS)
    return FRACTIONS if dtype.is_floating_point else FRACTIONS + BITS


def some(*shape, dtype):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    low = -100 if dtype.is_signed else 0
    return torch.randint(low, 100, shape).to(dtype)  # of which sums and products wrap around


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64, torch.bool], ids=str)
def test_dtypes(dtype):
    kinds = kinds_of(dtype)
    x = some(16, 2, dtype=dtype)

    def fn(x):
        reduced = [spmd.all_reduce(x, kind, "model") for kind in kinds]
        return [
            *reduced,
            spmd.all_gather(x, axis="model"),
            spmd.collective_broadcast(x, 2, "model"),
        ]

    # NumPy has no bfloat16.
    given = numpy_shards(x.float() if dtype is torch.bfloat16 else x, WIDE)
    groups = groups_of(WIDE, "model")
    wanted = [simulated.all_reduce(given, groups, kind) for kind in kinds]
    wanted += [
        simulated.all_gather(given, groups),
        simulated.collective_broadcast(given, groups, 2),
    ]
    found = on_shards(fn, WIDE, x, len(wanted))
    assert {f.dtype for f in found} == {dtype}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, joined(other).to(dtype))


# --- gradients -------------------------------------------------------------------------------

# By name: a collective as ours, and on simulated devices.
EXCHANGES = {
    **{
        f"{name} {kind}": (
            lambda x, name=name, kind=kind, **group: getattr(spmd, name)(x, kind, **group),
            lambda x, groups, name=name, kind=kind: getattr(simulated, name)(x, groups, kind),
        )
        for name in ("all_reduce", "reduce_scatter")
        for kind in FRACTIONS
    },
    "all_gather": (
        lambda x, **group: spmd.all_gather(x, 1, **group),
        lambda x, groups: simulated.all_gather(x, groups, 1),
    ),
    "all_to_all": (
        lambda x, **group: spmd.all_to_all(x, 0, 1, **group),
        lambda x, groups: simulated.all_to_all(x, groups, 0, 1),
    ),
    "broadcast": (
        lambda x, **group: spmd.collective_broadcast(x, 1, **group),
        lambda x, groups: simulated.collective_broadcast(x, groups, 1),
    ),
    "permute": (
        lambda x, **group: spmd.collective_permute(x, [(0, 1), (1, 3), (3, 2)], **group),
        lambda x, groups: simulated.collective_permute(x, groups, [(0, 1), (1, 3), (3, 2)]),
    ),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_gradients(name):
    """Of a function whose devices each count with another weight, and that has ties."""
    ours, reference = EXCHANGES[name]
    mesh = PERMUTED
    x = torch.randn(64, 4, dtype=torch.float64).round(decimals=0).requires_grad_()
    spec = (("data", "model"), None)

    def fn(x):
        return ours(x * 2 + 1, axis="model").sin()

    def alone(x):
        given = [p * 2 + 1 for p in shards_of(x, mesh, spec)]
        return torch.cat([p.sin() for p in reference(given, groups_of(mesh, "model"))])

    mapped = spmd.shard_map(fn, mesh, [spec], spec)
    result, wanted = torch.compile(mapped, backend="openxla", fullgraph=True)(x), alone(x)
    torch.testing.assert_close(result, wanted)
    weights = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad(result, x, weights)
    torch.testing.assert_close(gradient, *torch.autograd.grad(wanted, x, weights))


@pytest.mark.parametrize(
    "collective",
    [
        lambda a: spmd.all_gather(a, 5),
        lambda a: spmd.all_gather(a, -3),
        lambda a: spmd.reduce_scatter(a, "sum", 2),
        lambda a: spmd.all_to_all(a, 0, 2),
    ],
)
def test_dimensions_that_are_not_there(collective):
    mapped = spmd.shard_map(collective, ONE_AXIS, [("x", None)], ("x", None))
    with pytest.raises(Exception, match="there is no such dimension"):
        mapped(torch.randn(8, 8))
