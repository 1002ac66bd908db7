"""Marks on tensors and in compiled regions partition programs, and change no number."""

import threading

import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import ONE_AXIS, TALL, WIDE, collectives, kept_shards, mlp, sharded
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.torch_threads import as_if_compiling


def close(actual, wanted):
    """As far as sums in another order may differ."""
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


on_grids = pytest.mark.parametrize("mesh", [WIDE, TALL], ids=["2x4", "4x2"])


def compiled(fn):
    return torch.compile(fn, backend="openxla", fullgraph=True)


@on_grids
def test_an_activation_inside(mesh):
    x, a, b = torch.randn(16, 32), torch.randn(32, 64), torch.randn(64, 24)

    def f(x, a, b):
        h = spmd.mark_sharding((x @ a).relu(), mesh, ("data", "model"))
        return h @ b

    result, executable = sharded(f, x, a, b)
    close(result, (x @ a).relu() @ b)
    assert "sdy.sharding_constraint" in executable.stablehlo
    rows, columns = 16 // mesh.mesh_shape[0], 64 // mesh.mesh_shape[1]
    assert f"f32[{rows},{columns}]" in executable.hlo
    assert collectives(executable)["all-reduce"] == 1  # of the partial sums over "model"


def test_a_mark_as_a_statement():
    def f(x, w):
        h = x @ w
        spmd.mark_sharding(h, WIDE, ("data", None))
        return h.relu(), h

    x, w = torch.randn(8, 4), torch.randn(4, 4)
    (relu, h), executable = sharded(f, x, w)
    assert executable.stablehlo.count("sdy.sharding_constraint") == 1
    close((relu, h), ((x @ w).relu(), x @ w))


def test_a_statement_before_a_write():
    def f(x):
        h = x.sin()
        view = h[0]
        spmd.mark_sharding(h, WIDE, ("data", None))
        h.add_(1)
        return view * 2, h

    x = torch.randn(8, 4)
    close(compiled(f)(x), f(x))


@on_grids
def test_parameters_outside(mesh):
    model, x = mlp(), torch.randn(16, 32)
    with torch.no_grad():
        wanted = model(x)
        spmd.mark_sharding(model[0].weight, mesh, ("model", None))
        spmd.mark_sharding(model[2].weight, mesh, (None, "model"))
        result, executable = sharded(model, x)
    close(result, wanted)
    assert collectives(executable) == {"all-reduce": 1}  # Megatron's: columns, rows, one sum
    shards = mesh.mesh_shape[1]
    assert kept_shards(model[0].weight) == [[(64 // shards, 32)] * 8]
    assert kept_shards(model[2].weight) == [[(24, 64 // shards)] * 8]


def test_both_and_gradients():
    model, x = mlp(), torch.randn(16, 32)
    model(x).square().sum().backward()
    wanted = [p.grad for p in model.parameters()]
    model.zero_grad()
    spmd.mark_sharding(model[0].weight, WIDE, ("model", None))

    def loss(x):
        h = spmd.mark_sharding_with_gradients(model[:2](x), WIDE, ("data", "model"))
        return model[2](h).square().sum()

    compiled(loss)(x).backward()
    close([p.grad for p in model.parameters()], wanted)


def test_gradients_of_a_mark_are_marked_too_if_asked():
    x = torch.randn(8, 4, requires_grad=True)
    count = []
    for mark in (spmd.mark_sharding, spmd.mark_sharding_with_gradients):
        report = xla_dynamo.explain(lambda x, mark=mark: mark(x.sin(), WIDE, ("data", None)).exp())
        report(x).result.sum().backward()
        _, backward = report.report.executables
        count.append(backward.stablehlo.count("sdy.sharding_constraint"))
    assert count == [0, 1]


def test_an_input_is_sharded():
    x = spmd.mark_sharding(torch.randn(16, 8), ONE_AXIS, ("x", None))
    result, executable = sharded(lambda x: x.exp().sum(1), x)
    close(result, x.exp().sum(1))
    assert not collectives(executable)
    assert "f32[2,8]" in executable.hlo


def test_resharding_between_calls_recompiles_once():
    model, x = mlp(), torch.randn(16, 32)
    spmd.clear_sharding(spmd.mark_sharding(x, WIDE, (0, None)))  # the first mark of the process
    explained = xla_dynamo.explain(model)
    with torch.no_grad():
        wanted = model(x)
        close(explained(x).result, wanted)
        for spec in (("model", None), (None, "model"), ("data", None)):
            for _ in range(2):
                spmd.mark_sharding(model[0].weight, WIDE, spec)
                close(explained(x).result, wanted)
        assert len(explained.report.executables) == 4
        spmd.mark_sharding(model[0].weight, WIDE, ("model", None))  # seen before
        close(explained(x).result, wanted)
        spmd.clear_sharding(model[0].weight)
        close(explained(x).result, wanted)
        assert len(explained.report.executables) == 4
        spmd.mark_sharding(model[0].weight, TALL, ("model", None))  # another mesh
        close(explained(x).result, wanted)
    assert len(explained.report.executables) == 5


def test_parameters_that_change_are_seen():
    model, x = mlp(), torch.randn(16, 32)
    for layer, spec in ((model[0], ("model", None)), (model[2], (None, "model"))):
        spmd.mark_sharding(layer.weight, WIDE, spec)
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            close(fast(x), model(x))
            for p in model.parameters():
                p.add_(0.1)
        model[2].weight.mul_(2)
        close(fast(x), model(x))
        model[2].weight.data = torch.randn(24, 64)
        close(fast(x), model(x))
        model[2].weight.data.zero_()  # which nobody counts
        xla_dynamo.refreeze()
        close(fast(x), model(x))


def test_marks_that_come_after_a_graph_for_training_was_compiled():
    model, x = mlp(), torch.randn(16, 32)
    fast = compiled(model)
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        wanted = [p.grad for p in model.parameters()]
        model.zero_grad()
        fast(x).square().sum().backward()
        close([p.grad for p in model.parameters()], wanted)
        spmd.mark_sharding(model[0].weight, WIDE, ("model", None))


def test_the_first_mark_of_a_process_lets_everything_be_compiled_anew():
    x, w = torch.randn(8, 4), torch.randn(4, 4)
    explained = xla_dynamo.explain(torch.matmul)
    explained(x, w)
    spmd.mark_sharding(w, WIDE, (None, "model"))
    _, second = explained(x, w).executables
    assert "sdy.sharding" in second.stablehlo


@pytest.mark.parametrize("mark", ["x", "w", "both", "inside"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_layouts_and_dtypes(mark, dtype):
    x, w = torch.randn(8, 32, 16, dtype=dtype).mT, torch.randn(64, 32, dtype=dtype).T
    assert not x.is_contiguous()
    assert not w.is_contiguous()
    if mark in ("x", "both"):
        spmd.mark_sharding(x, WIDE, ("data", "model", None))
    if mark in ("w", "both"):
        spmd.mark_sharding(w, WIDE, (None, "model"))

    def f(x, w):
        y = x @ w
        return (
            spmd.mark_sharding(y, WIDE, (None, None, ("data", "model"))).mT
            if mark == "inside"
            else y.mT
        )

    result, wanted = compiled(f)(x, w), (x @ w).mT
    close(result, wanted)
    assert result.stride() == wanted.stride()


def test_uneven_sizes_inside():
    x = torch.randn(10, 6)

    def f(x):
        return spmd.mark_sharding(x.sin(), WIDE, ("model", "data")).cos() @ x.T

    close(compiled(f)(x), x.sin().cos() @ x.T)
    alone = compiled(lambda x: spmd.mark_sharding(x.sin(), WIDE, ("model", "data")))
    close(alone(x), x.sin())  # a result of uneven shards


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (1, 8)], ids=str)
def test_empty_and_short(shape):
    x = torch.randn(shape)
    close(compiled(lambda x: spmd.mark_sharding(x.sin(), WIDE, ("data", None)))(x), x.sin())


def test_mutated_inputs():
    cache, x = torch.zeros(8, 16), torch.randn(2, 16)
    spmd.mark_sharding(cache, ONE_AXIS, ("x", None))

    def f(cache, x, at):
        cache.index_copy_(0, at, x)
        return cache.sum()

    fast = compiled(f)
    wanted = cache.clone()
    for at in (torch.tensor([1, 2]), torch.tensor([7, 0])):
        close(fast(cache, x, at), f(wanted, x, at))
        close(cache, wanted)


def test_random_numbers_are_the_same_when_sharded():
    def f(x):
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.ones(16, 32)
    torch.manual_seed(3)
    whole = compiled(f)(x)
    torch.manual_seed(3)
    close(compiled(lambda x: spmd.mark_sharding(f(x), WIDE, ("data", "model")))(x), whole)


def test_sizes_that_stay_dynamic():
    fast = torch.compile(
        lambda x: spmd.mark_sharding(x.sin(), WIDE, ("data", None)).sum(0),
        backend="openxla",
        dynamic=True,
    )
    for n in (4, 8, 6):
        x = torch.randn(n, 16)
        close(fast(x), x.sin().sum(0))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (("data",), "has 1 entries, and the tensor 2 dimensions"),
        (("nope", None), "names the axis 'nope', and the axes of Mesh.* are .'data', 'model'."),
        ((2, None), "names the axis '2'"),
        (("data", "data"), "has the axis 'data' twice"),
        ((("data", "model"), 1), "has the axis 'model' twice"),
    ],
)
def test_wrong_specs(spec, message):
    x = torch.randn(16, 32)
    with pytest.raises(ShardingError, match=message):
        spmd.mark_sharding(x, WIDE, spec)
    with pytest.raises(ShardingError, match=message) as raised:
        compiled(lambda x: spmd.mark_sharding(x.sin(), WIDE, spec))(x)
    assert "test_mark_sharding.py" in str(raised.value)  # and the user's line
    assert "shape (16, 32)" in str(raised.value)


def test_sizes_that_are_not_divisible_outside():
    with pytest.raises(ShardingError, match=r"dimension 1 of a tensor of shape \(16, 30\) .* 4"):
        spmd.mark_sharding(torch.randn(16, 30), WIDE, (None, "model"))


def test_two_meshes_in_one_graph():
    """The program is partitioned over their common mesh, and what was marked stays as it was."""
    a = spmd.mark_sharding(torch.randn(8, 8), WIDE, ("model", "data"))
    b = spmd.mark_sharding(torch.randn(8, 8), ONE_AXIS, ("x", None))

    @compiled
    def f(a, b):
        return spmd.mark_sharding(a @ b, TALL, ("model", "data")) + 1

    for _ in range(2):
        torch.testing.assert_close(f(a, b), a @ b + 1, rtol=1e-4, atol=1e-4)
    assert kept_shards(a) == [[(2, 4)] * 8]
    assert kept_shards(b) == [[(1, 8)] * 8]
    spmd.mark_sharding(b, WIDE, ("model", None))
    torch.testing.assert_close(f(a, b), a @ b + 1, rtol=1e-4, atol=1e-4)


def test_meshes_without_a_common_one():
    a = spmd.mark_sharding(torch.randn(8, 8), WIDE, ("data", None))
    b = spmd.mark_sharding(torch.randn(8, 8), spmd.Mesh(range(8)[::-1], (8,), ("x",)), ("x", None))
    with pytest.raises(ShardingError, match=r"one mesh, and an input .* no mesh has the axes of"):
        compiled(lambda a, b: a @ b)(a, b)


def test_devices_that_are_not_there():
    far = spmd.Mesh([0, 9], (2,), ("x",))
    with pytest.raises(ShardingError, match=r"set_device_count|CPU_NUM_DEVICES=10"):
        compiled(lambda x: spmd.mark_sharding(x.sin(), far, ("x", None)))(torch.randn(4, 4))


def test_some_of_the_devices_in_another_order():
    mesh = spmd.Mesh([5, 2, 7, 0], (2, 2), ("a", "b"))
    x = torch.randn(8, 6)
    w = spmd.mark_sharding(torch.randn(6, 4), mesh, ("b", "a"))
    fast = compiled(lambda x, w: spmd.mark_sharding(x @ w, mesh, ("b", "a")))
    close(fast(x, w), x @ w)


def test_a_mesh_of_one_device():
    x, mesh = torch.randn(4, 4), spmd.Mesh([3], (1,), ("x",))
    close(compiled(lambda x: spmd.mark_sharding(x.sin(), mesh, ("x", None)))(x), x.sin())


def test_eager_marks_and_clears():
    x = torch.randn(8, 4)
    assert spmd.mark_sharding(x, WIDE, (1, None)) is x
    assert spmd.sharding_of(x).axes == (("model",), ())
    assert spmd.sharding_of(x.detach()) == spmd.sharding_of(x)
    assert spmd.sharding_of(x[1:]) is None
    spmd.clear_sharding(x)
    assert spmd.sharding_of(x) is None


def test_several_threads():
    fast = compiled(lambda x, w: spmd.mark_sharding(x @ w, ONE_AXIS, (None, "x")).sum(1))
    alone = compiled(lambda x: x.sin().sum())
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    fast(x, w), alone(x)
    found = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(8, 8, generator=generator)
            found.append(torch.allclose(fast(x, w), (x @ w).sum(1), atol=1e-4))
            alone(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 120


OPERATORS = {
    "convolution": lambda x: torch.nn.functional.conv2d(x.view(8, 1, 8, 8), torch.ones(4, 1, 3, 3)),
    "sort": lambda x: x.sort(0)[0],
    "topk": lambda x: x.topk(3, 0)[0],
    "cholesky": lambda x: torch.linalg.cholesky(x.T @ x + torch.eye(64)),
    "svd": torch.linalg.svdvals,
    "fft": lambda x: torch.fft.rfft(x, dim=0).abs(),
    "cumsum": lambda x: x.cumsum(0),
    "gather": lambda x: x[torch.tensor([7, 0, 3])],
    "nonzero": lambda x: (x > 0).nonzero(),
    "roll": lambda x: x.roll(3, 0),
    "argmax": lambda x: x.argmax(0),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *[x.view(2, 4, 8, 8)] * 3
    ),
    "batch norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_along_the_sharded_dimension(name):
    x, fn = torch.randn(8, 64), OPERATORS[name]
    wanted = fn(x)
    spmd.mark_sharding(x, ONE_AXIS, ("x", None))
    close(torch.compile(fn, backend="openxla")(x), wanted)


def test_a_mark_while_another_thread_compiles():
    x = torch.randn(16, 32)
    with as_if_compiling():
        assert spmd.mark_sharding(x, WIDE, ("data", None)) is x
    assert spmd.sharding_of(x).axes == (("data",), ())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_what_is_stacked_stays_where_it_is(dim):
    x = spmd.mark_sharding(torch.randn(16, 4, 6), ONE_AXIS, ("x", None, None))

    def stacked(x):
        return torch.stack([x, x.sin(), x * 2], dim) + 1

    result, executable = sharded(stacked, x)
    assert not collectives(executable)
    torch.testing.assert_close(result, stacked(x))
