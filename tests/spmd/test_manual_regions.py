"""Manual regions: what each device does with its shards, against one device's computation."""

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch.utils.checkpoint import checkpoint

import xla_dynamo
from tests.spmd.sharding import ONE_AXIS, TALL, WIDE, collectives, sharded
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.torch_threads import as_if_compiling

PERMUTED = spmd.Mesh([5, 2, 7, 0, 3, 6, 1, 4], (2, 4), ("data", "model"))
BOTH = ("data", "model")
on_meshes = pytest.mark.parametrize("mesh", [WIDE, TALL, PERMUTED], ids=["2x4", "4x2", "permuted"])


def close(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def compiled(fn, **options):
    return torch.compile(fn, backend="openxla", fullgraph=True, **options)


def check_gradients(fn, reference, *inputs):
    """Results and gradients of a compiled function are those of one device's."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    result, wanted = compiled(fn)(*inputs), reference(*inputs)
    close(result, wanted)
    weights = torch.randn_like(wanted)
    close(
        torch.autograd.grad(result, inputs, weights), torch.autograd.grad(wanted, inputs, weights)
    )


def summed_model(x, mesh=WIDE):
    """The sum of what the devices along "model" have, of a tensor whose columns they shard."""
    rows, columns = x.shape
    count = mesh.shape()["model"]
    return x.reshape(rows, count, columns // count).sum(1)


@on_meshes
def test_a_product_of_shards(mesh):
    x, w = torch.randn(16, 32), torch.randn(32, 24)

    def product(x, w):
        return spmd.all_reduce(x @ w, axis="model")

    mapped = spmd.shard_map(product, mesh, [BOTH, ("model", None)], ("data", None))
    result, executable = sharded(lambda x, w: mapped(x.sin(), w) * 2, x, w)
    close(result, x.sin() @ w * 2)
    assert executable.stablehlo.count("sdy.manual_computation") == 1
    assert "xla_dynamo." not in executable.stablehlo  # the calls of its ends are gone
    assert collectives(executable) == {"all-reduce": 1}
    check_gradients(mapped, torch.matmul, x, w)


def test_it_compiles_itself():
    x = torch.randn(16, 8)
    mapped = spmd.shard_map(
        lambda x: spmd.all_reduce(x, axis="model"), WIDE, [BOTH], ("data", None)
    )
    close(mapped(x), summed_model(x))
    with as_if_compiling():
        close(mapped(x), summed_model(x))


def test_trees():
    x, y = torch.randn(16, 8), torch.randn(8)

    def fn(both, factor, nothing):
        assert nothing is None
        x, y = both["x"], both["y"]
        return {"x": x * factor, "rest": [spmd.all_reduce(y, axis="x"), (x + 1,)]}

    specs = {"x": ("x", None), "y": ("x",)}
    out = {"x": ("x", None), "rest": [(None,), (("x", None),)]}
    mapped = spmd.shard_map(fn, ONE_AXIS, [specs, None, None], out)
    found = compiled(mapped)({"x": x, "y": y}, 3, None)
    close(found, {"x": x * 3, "rest": [y.sum()[None], (x + 1,)]})


def test_ends_as_functions():
    """PyTorch/XLA's names."""
    x = torch.randn(16, 8)

    def fn(x):
        shard = spmd.enable_manual_sharding(x, (0, 1), mesh=WIDE)
        assert shard.shape == (8, 2)
        shard = shard + spmd.all_reduce(shard.sum(), mesh=WIDE)
        return spmd.disable_manual_sharding(shard, (0, 1), x.shape, mesh=WIDE)

    check_gradients(fn, lambda x: x + x.sum(), x)


def test_regions_that_need_each_other():
    x = torch.randn(16, 8)
    centered = spmd.shard_map(lambda x: x - spmd.all_reduce(x.sum(), "avg"), WIDE, [BOTH], BOTH)
    product = spmd.shard_map(
        lambda x, y: spmd.all_gather(x * y, 1, "model"), WIDE, [BOTH, BOTH], ("data", None)
    )

    def fn(x):
        y = centered(x).sin()
        return product(y, centered(y * 2) + 1)

    def reference(x):
        y = (x - x.sum() / 8).sin()
        return y * (y * 2 - y.sum() * 2 / 8 + 1)

    _, executable = sharded(fn, x)
    assert executable.stablehlo.count("sdy.manual_computation") == 3
    check_gradients(fn, reference, x)


def test_a_shard_that_a_later_region_reads():
    """A matrix and a scalar cross from one computation to the next."""

    def fn(x):
        a = spmd.enable_manual_sharding(x, BOTH, mesh=WIDE)
        b, norm = a * 2, (a * a).sum()
        c = spmd.disable_manual_sharding(b, BOTH, mesh=WIDE).cos()
        d = spmd.enable_manual_sharding(c, BOTH, mesh=WIDE)
        result = d + b * spmd.all_reduce(norm, mesh=WIDE)
        return spmd.disable_manual_sharding(result, BOTH, mesh=WIDE)

    x = torch.randn(16, 8)
    _, executable = sharded(fn, x)
    assert executable.stablehlo.count("sdy.manual_computation") == 2
    assert collectives(executable) == {"all-reduce": 1}  # what crosses stays where it is
    check_gradients(fn, lambda x: (x * 2).cos() + x * 2 * (x * x).sum(), x)


def test_what_it_reads_besides_is_whole():
    x, w, mask = torch.randn(16, 8), torch.randn(8, 4), torch.randn(4) > 0

    def fn(x, w):
        inner = spmd.shard_map(
            lambda x: torch.where(mask, x @ w, 0) + torch.arange(4),
            WIDE,
            [("data", None)],
            ("data", None),
        )
        return inner(x)

    with torch.no_grad():
        close(compiled(fn)(x, w), torch.where(mask, x @ w, 0) + torch.arange(4))


def test_with_marks():
    x = spmd.mark_sharding(torch.randn(16, 8), WIDE, ("data", None))
    mapped = spmd.shard_map(
        lambda x: spmd.all_reduce(x, axis="model"), WIDE, [BOTH], ("data", None)
    )

    def fn(x):
        return spmd.mark_sharding(mapped(x.sin()), WIDE, (None, None)).T

    close(compiled(fn)(x), summed_model(x.sin()).T)


def test_loops_and_branches_inside():
    x = torch.randn(16, 8)

    def body(carried, row):
        made = (carried + spmd.all_reduce(row.sin(), axis="model")).sin()
        return made, made * 2

    def fn(x):
        _, rows = scan(body, torch.zeros(2), x, dim=0)
        return torch.cond(rows.sum() < 1e9, lambda r: r.sin(), lambda r: r.cos(), (rows,))

    def reference(x):
        rows = []
        for half in summed_model(x.sin()).chunk(2):
            carried = torch.zeros(2)
            for row in half:
                carried = (carried + row).sin()
                rows.append(carried * 2)
        return torch.stack(rows).sin()

    check_gradients(spmd.shard_map(fn, WIDE, [BOTH], ("data", None)), reference, x)


def test_inside_loops():
    x = torch.randn(6, 8)
    inner = spmd.shard_map(lambda y: y - spmd.all_reduce(y, "max"), WIDE, [("model",)], ("model",))

    def body(carried, row):
        made = carried + inner(row)
        return made, made * 2

    def fn(x):
        return scan(body, torch.zeros(8), x, dim=0)[1]

    highest = x.reshape(6, 4, 2).amax(1)
    close(compiled(fn)(x), (x - highest.repeat(1, 4)).cumsum(0) * 2)
    with pytest.raises(Exception, match=r"manual region inside the body of .* no gradient yet"):
        compiled(fn)(x.requires_grad_())


def test_checkpoints():
    mapped = spmd.shard_map(
        lambda x: spmd.all_reduce(x.sin(), axis="model").exp(), WIDE, [BOTH], ("data", None)
    )
    check_gradients(
        lambda x: checkpoint(mapped, x, use_reentrant=False),
        lambda x: summed_model(x.sin()).exp(),
        torch.randn(16, 8),
    )


def test_sizes_that_stay_dynamic():
    mapped = spmd.shard_map(lambda x: x * 2 + spmd.all_reduce(x.sum()), WIDE, [BOTH], BOTH)
    fast = compiled(mapped, dynamic=True)
    for n in (4, 8, 6):
        x = torch.randn(n, 8, requires_grad=True)
        result = fast(x)
        close(result, x * 2 + x.sum())
        result.sum().backward()
        close(x.grad, torch.full_like(x, 2 + x.numel()))
    with pytest.raises(ShardingError, match="7 is not divisible by 2"):
        fast(torch.randn(7, 8))


def losses(in_region):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))

    def tensor_parallel(x, w1, b1, w2, b2):
        hidden = torch.nn.functional.gelu(x @ w1.T + b1)
        return spmd.all_reduce(hidden @ w2.T, axis="model") + b2

    specs = [("data", None), ("model", None), ("model",), (None, "model"), (None,)]
    mapped = spmd.shard_map(tensor_parallel, WIDE, specs, ("data", None))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return mapped(x, *self.layers.parameters()) if in_region else self.layers(x)

    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
    step = xla_dynamo.train_step(Model(), lambda m, x, y: (m(x) - y).square().mean(), optimizer)
    if in_region:
        spmd.mark_sharding(layers[0].weight, WIDE, ("model", None))
    torch.manual_seed(1)
    return torch.tensor([step(torch.randn(16, 8), torch.randn(16, 4)).item() for _ in range(20)])


def test_a_training_step():
    torch.testing.assert_close(losses(True), losses(False), rtol=1e-4, atol=0)


def test_one_device():
    mesh, x = spmd.Mesh([3], (1,), ("x",)), torch.randn(4, 4)

    def fn(x):
        gathered = spmd.all_gather(spmd.all_reduce(x, "avg")) + spmd.axis_index("x")
        return spmd.collective_permute(gathered, [(0, 0)], "x")

    close(compiled(spmd.shard_map(fn, mesh, [("x", None)], ("x", None)))(x), x)


def test_no_elements():
    mapped = spmd.shard_map(lambda x: spmd.all_reduce(x.sum(0)), WIDE, [BOTH], (None,))
    close(compiled(mapped)(torch.randn(0, 8)), torch.zeros(2))


# --- what is refused -------------------------------------------------------------------------


def in_region(fn, in_specs=(BOTH,), out_specs=BOTH):
    return spmd.shard_map(fn, WIDE, in_specs, out_specs)


PARAMETER = torch.nn.Parameter(torch.randn(2))


def a_marking_body(carried, row):
    return carried + 1, spmd.mark_sharding(row * 2, WIDE, (None,))


REFUSED = {
    "a mark in a loop": (
        in_region(lambda x: scan(a_marking_body, torch.zeros(1), x, dim=0)[1]),
        "XLA partitions nothing",
    ),
    "a mark": (
        in_region(lambda x: spmd.mark_sharding(x * 2, WIDE, (None, None))),
        "XLA partitions no",
    ),
    "a region": (in_region(in_region(lambda x: x * 2)), "another inside it"),
    "no end": (
        lambda x: spmd.enable_manual_sharding(x, BOTH, mesh=WIDE) * 2,
        r"a result of shape \(6, 2\) is a shard of a manual region",
    ),
    "eager": (in_region(lambda x: x.nonzero().float()), "nonzero.* cannot be compiled"),
    "an effect": (in_region(lambda x: torch.linalg.inv(x[:2])), "linalg_check_errors.* inv_ex"),
    "a write": (in_region(lambda x: PARAMETER.detach().copy_(x.sum(0)) + x), "an input is changed"),
    "no region": (
        lambda x: spmd.all_reduce(x, axis="data", mesh=WIDE),
        "all_reduce is outside of a manual region",
    ),
    "an axis": (
        in_region(lambda x: spmd.all_reduce(x, axis="nope")),
        r"goes along axes of its mesh",
    ),
    "a group": (
        in_region(lambda x: spmd.all_gather(x, groups=[[0, 1], [2, 3]])),
        "groups of one size, with each of the devices",
    ),
    "a group of its own": (
        in_region(lambda x: spmd.all_gather(x, groups=[[0, 1, 2, 3, 4, 5, 6], [7]])),
        "groups of one size, with each of the devices",
    ),
    "a pair": (
        in_region(lambda x: spmd.collective_permute(x, [(0, 1), (2, 1)], "model")),
        "each sends once and gets once",
    ),
    "a place": (
        in_region(lambda x: spmd.collective_permute(x, [(0, 4)], "model")),
        "each sends once and gets once",
    ),
    "a reduction": (in_region(lambda x: spmd.all_reduce(x, "median")), "not by 'median'"),
    "bits": (in_region(lambda x: spmd.all_reduce(x, "bor")), "no 'bor' of torch.float32"),
    "a part": (
        in_region(lambda x: spmd.reduce_scatter(x, dim=1, axis="model")),
        "2 is not divisible by 4",
    ),
    "a source": (in_region(lambda x: spmd.collective_broadcast(x, 4, "model")), "0 to 3, and 4"),
    "a spec": (in_region(lambda x: x, [("data", "nope")]), "names the axis 'nope'"),
    "a rank": (in_region(lambda x: x, [("data",)]), "has 1 entries, and the tensor 2 dim"),
    "a size": (in_region(lambda x: x, [(BOTH, None)]), r"\(12, 8\).* 12 is not divisible by 8"),
    "arguments": (in_region(lambda x: x, []), "has 0 in_specs, .* with 1 arguments"),
    "results": (in_region(lambda x: [x, x]), "out_specs has 'data' for a tensor"),
    "no spec": (in_region(lambda x: x, [None]), "has None for a tensor"),
    "a shape": (
        lambda x: spmd.disable_manual_sharding(x, BOTH, (1, 2), mesh=WIDE),
        r"make a tensor of shape \(24, 32\), and full_shape is \(1, 2\)",
    ),
    "which mesh": (lambda x: spmd.all_reduce(x, axis="data"), "which mesh"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    fn, message = REFUSED[name]
    x = torch.randn(12, 8)
    fast = torch.compile(lambda x: fn(x), backend="openxla", fullgraph=True)
    with pytest.raises(Exception, match=message) as raised:
        fast(x)
    assert "ShardingError" in repr(raised.value) + str(raised.value)
    assert "test_manual_regions.py" in str(raised.value)  # and the user's line


def test_a_graph_break():
    def fn(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1

    fast = torch.compile(spmd.shard_map(fn, WIDE, [BOTH], BOTH), backend="openxla")
    with pytest.raises(Exception, match=r"is a shard of a manual region.* without a break"):
        fast(torch.randn(16, 8))


def test_a_gradient_of_what_is_no_argument():
    fn = compiled(spmd.shard_map(lambda x: x * PARAMETER, WIDE, [BOTH], BOTH))
    with pytest.raises(ShardingError, match="must be an argument of it to have a gradient"):
        fn(torch.randn(16, 8)).sum().backward()


def test_eager_code_is_refused():
    x = torch.randn(16, 8)
    with pytest.raises(ShardingError, match=r"all_reduce on a tensor of shape \(16, 8\) in eager"):
        spmd.all_reduce(x, mesh=WIDE)
    with pytest.raises(ShardingError, match="compile the function"):
        spmd.enable_manual_sharding(x, BOTH, mesh=WIDE)


def test_many_functions():
    """Dynamo's limit of compilations for one function is for each of them."""
    x = torch.randn(8, 8)
    limit = torch._dynamo.config.recompile_limit
    for k in range(limit + 2):
        mapped = spmd.shard_map(lambda a, k=k: a + k, WIDE, [("data", None)], ("data", None))
        torch.testing.assert_close(mapped(x), x + k)
