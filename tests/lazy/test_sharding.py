"""Tensors of the lazy device that are sharded over a mesh of eight devices of the CPU."""

import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import ONE_AXIS, TALL, WIDE, mlp
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.lazy.contents import cell_of
from xla_dynamo.runtime.jaxlib_private import shards_of
from xla_dynamo.spmd import Mesh

MIXED = Mesh([3, 1, 0, 2, 7, 5, 6, 4], (2, 4), ("data", "model"))


def on_device(*sizes, **kwargs):
    return torch.randn(*sizes, **kwargs).to(xla_dynamo.device())


def shards(tensor):
    """The shapes of the devices' shards of a tensor."""
    buffer = cell_of(tensor).value.buffer
    return [tuple(p.shape) for p in shards_of(buffer)]


def axes(tensor):
    """The axes that shard each dimension of a tensor, as its buffers lie."""
    sharding = spmd.sharding_of(tensor)
    return None if sharding is None else sharding.axes


def test_a_computed_tensor_is_sharded_at_once():
    x = on_device(16, 8)
    assert spmd.mark_sharding(x, WIDE, ("data", "model")) is x
    assert shards(x) == [(8, 2)] * 8
    assert axes(x) == (("data",), ("model",))


@pytest.mark.parametrize("mesh", [WIDE, TALL, MIXED, ONE_AXIS], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_the_elements_stay_the_same(mesh, dtype):
    on_cpu = torch.randn(16, 8, 8).to(dtype)
    spec = (mesh.axis_names[-1], None, mesh.axis_names[0] if len(mesh.axis_names) > 1 else None)
    for make in (lambda x: x, lambda x: x.permute(2, 0, 1), lambda x: x[:, :, ::2]):
        given = make(on_cpu)
        x = given.to(xla_dynamo.device())
        spmd.mark_sharding(x, mesh, spec if given.shape[2] % mesh.size() == 0 else (None,) * 3)
        assert x.stride() == given.to("cpu", copy=True).stride()
        torch.testing.assert_close(x.cpu(), given, rtol=0, atol=0)
        torch.testing.assert_close((x + x).cpu(), given + given, rtol=0, atol=0)


def test_a_pending_tensor_is_sharded_in_its_program():
    x = on_device(16, 32)
    y = x.sin()
    spmd.mark_sharding(y, WIDE, ("data", "model"))
    z = y + 1
    xla_dynamo.sync()
    assert shards(y) == [(8, 8)] * 8
    assert axes(z) == (("data",), ("model",))  # which the partitioner chose
    torch.testing.assert_close(z.cpu(), x.cpu().sin() + 1)


def test_views_and_parts():
    x = on_device(16, 8)
    expected = x.cpu() * 2
    y = x * 2
    spmd.mark_sharding(y.t(), WIDE, ("model", "data"))
    spmd.mark_sharding(y[:8], WIDE, ("data", None))
    xla_dynamo.sync()
    spmd.mark_sharding(y[8:], WIDE, ("data", None))
    torch.testing.assert_close(y.cpu(), expected)
    with torch.no_grad():
        y[:4] += 1
    expected[:4] += 1
    torch.testing.assert_close(y.cpu(), expected)
    torch.testing.assert_close(y.view(4, 32).t().cpu(), expected.view(4, 32).t())


@pytest.mark.parametrize("shape", [(10, 7), (0, 8), (1,)])
def test_uneven_sizes_are_sharded_within_programs(shape):
    x = on_device(*shape)
    spec = ("x",) + (None,) * (len(shape) - 1)
    spmd.mark_sharding(x, ONE_AXIS, spec)
    y = spmd.mark_sharding(x + 1, ONE_AXIS, spec)
    torch.testing.assert_close(y.cpu(), x.cpu() + 1)
    torch.testing.assert_close((y * x).sum().cpu(), (y.cpu() * x.cpu()).sum())


def test_writes_in_place_keep_the_mark():
    x = spmd.mark_sharding(on_device(16, 8), WIDE, ("data", None))
    before = x.cpu()
    for step in range(3):
        x.add_(step).mul_(2)
        before.add_(step).mul_(2)
        xla_dynamo.sync()
        assert shards(x) == [(8, 8)] * 8
    x.copy_(torch.ones(16, 8))
    xla_dynamo.sync()
    assert shards(x) == [(8, 8)] * 8
    torch.testing.assert_close(x.cpu(), torch.ones(16, 8))


def test_clear_sharding_brings_a_tensor_back_to_one_device():
    x = spmd.mark_sharding(on_device(16, 8), WIDE, ("data", None))
    before = x.cpu()
    assert spmd.clear_sharding(x) is x
    assert spmd.sharding_of(x) is None
    y = x + 1
    assert spmd.sharding_of(y) is None
    torch.testing.assert_close(y.cpu(), before + 1)


def test_gradients_are_sharded_where_that_is_asked_for():
    x = on_device(16, 8).requires_grad_()
    y = spmd.mark_sharding_with_gradients(x.sin(), WIDE, ("data", "model"))
    (gradient,) = torch.autograd.grad((y * y).sum(), x)
    xla_dynamo.sync()
    assert axes(gradient) == (("data",), ("model",))
    expected = 2 * x.detach().cpu().sin() * x.detach().cpu().cos()
    torch.testing.assert_close(gradient.cpu(), expected)


def test_resharding_between_steps_recompiles_once(executables):
    w = spmd.mark_sharding(on_device(8, 16), WIDE, (None, "model"))
    x = on_device(4, 8)
    expected = x.cpu() @ w.cpu()
    made = []
    for spec in [(None, "model")] * 2 + [("model", None)] * 2 + [(None, "model")]:
        spmd.mark_sharding(w, WIDE, spec)
        y = x @ w
        xla_dynamo.sync()
        torch.testing.assert_close(y.cpu(), expected)
        made.append(executables())
    assert made == [1, 1, 2, 2, 2]


def data_parallel(model):
    return ONE_AXIS


def tensor_parallel(model):
    spmd.mark_sharding(model[0].weight, WIDE, ("model", None))
    spmd.mark_sharding(model[0].bias, WIDE, ("model",))
    spmd.mark_sharding(model[2].weight, WIDE, (None, "model"))
    return WIDE


def fully_sharded(model):
    for p in model.parameters():
        spmd.mark_sharding(p, ONE_AXIS, ("x",) + (None,) * (p.dim() - 1))
    return ONE_AXIS


def train(recipe=None, steps=20):
    """The losses of some steps on the device, and the optimizer."""
    model = mlp().to(xla_dynamo.device())
    mesh = recipe(model) if recipe is not None else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    found = []
    for _ in range(steps):
        x, y = on_device(16, 32), on_device(16, 24)
        if mesh is not None:
            spmd.mark_sharding(x, mesh, (mesh.axis_names[0], None))
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        xla_dynamo.sync()
        found.append(loss.item())
    return torch.tensor(found), optimizer


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", [data_parallel, tensor_parallel, fully_sharded])
def test_twenty_steps_have_the_losses_of_one_device(recipe, executables):
    alone, _ = train()
    before = executables()
    sharded, optimizer = train(recipe)
    torch.testing.assert_close(sharded, alone, rtol=1e-4, atol=0)
    assert executables() - before == 2  # the first step makes the optimizer's state
    for p, state in optimizer.state.items():
        assert shards(state["exp_avg"]) == shards(p)
    if recipe is fully_sharded:
        (weight, *_) = optimizer.param_groups[0]["params"]
        assert shards(weight) == [(8, 32)] * 8


def test_compiled_graphs_read_and_give_sharded_tensors():
    model = mlp().to(xla_dynamo.device())
    tensor_parallel(model)
    x = spmd.mark_sharding(on_device(16, 32), WIDE, ("data", None))
    fast = torch.compile(model, backend="openxla")
    y = fast(x)
    assert y.device.type == "xla"
    assert len(shards(y)) == 8
    torch.testing.assert_close(y.cpu(), model(x).cpu(), rtol=1e-5, atol=1e-5)
    fast(x).square().mean().backward()
    sharded = [p.grad.cpu() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for gradient, p in zip(sharded, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad.cpu(), rtol=1e-4, atol=1e-5)


def test_marks_inside_compiled_graphs():
    @torch.compile(backend="openxla")
    def f(x):
        return spmd.mark_sharding(x.sin(), WIDE, ("data", "model")) + 1

    x = on_device(16, 8)
    y = f(x)
    assert axes(y) == (("data",), ("model",))
    torch.testing.assert_close(y.cpu(), x.cpu().sin() + 1)


def test_compiled_graphs_that_write_into_sharded_tensors():
    @torch.compile(backend="openxla")
    def f(state, x):
        state.add_(x)
        return state * 2

    state = spmd.mark_sharding(on_device(16, 8), WIDE, ("data", None))
    expected = state.cpu()
    for _ in range(3):
        x = on_device(16, 8)
        expected += x.cpu()
        torch.testing.assert_close(f(state, x).cpu(), expected * 2)
        torch.testing.assert_close(state.cpu(), expected)
        assert shards(state) == [(8, 8)] * 8


def test_train_step(executables):
    """The step is one executable, and the one before it makes the optimizer's state."""

    def losses(marked):
        model = mlp().to(xla_dynamo.device())
        if marked:
            tensor_parallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        step = xla_dynamo.train_step(model, lambda m, x, y: (m(x) - y).square().mean(), optimizer)
        torch.manual_seed(1)
        batches = [(on_device(16, 32), on_device(16, 24)) for _ in range(20)]
        found = [step(x, y).item() for x, y in batches[:2]]
        before = executables()
        found += [step(x, y).item() for x, y in batches[2:]]
        assert executables() == before
        for p, state in optimizer.state.items():
            assert spmd.sharding_of(p) == spmd.sharding_of(state["exp_avg"])
        return torch.tensor(found)

    torch.testing.assert_close(losses(True), losses(False), rtol=1e-4, atol=0)


def test_operators_that_run_in_torch():
    x = spmd.mark_sharding(on_device(16, 8), WIDE, ("data", None))
    on_cpu = x.cpu()
    assert x.sum().item() == pytest.approx(on_cpu.sum().item(), abs=1e-5)
    torch.testing.assert_close(x[x > 0].cpu(), on_cpu[on_cpu > 0])
    torch.testing.assert_close(x.unique().cpu(), on_cpu.unique())
    spmd.mark_sharding(y := x * 1, WIDE, ("data", None))
    y[y < 0] = 0.5
    torch.testing.assert_close(y.cpu(), torch.where(on_cpu < 0, 0.5, on_cpu))


def test_draws_are_those_of_one_device():
    def draw(marked):
        x = torch.ones(16, 8).to(xla_dynamo.device())
        if marked:
            spmd.mark_sharding(x, WIDE, ("data", "model"))
        torch.xla.manual_seed(3)
        return torch.nn.functional.dropout(x, 0.5).cpu()

    torch.testing.assert_close(draw(False), draw(True), rtol=0, atol=0)


def test_wrong_specs():
    x = on_device(16, 8)
    with pytest.raises(ShardingError, match="3 entries, and the tensor 2 dimensions"):
        spmd.mark_sharding(x, WIDE, ("data", None, None))
    with pytest.raises(ShardingError, match="names the axis 'rows'"):
        spmd.mark_sharding(x + 1, WIDE, ("rows", None))
    far = Mesh(range(8, 16), (8,), ("x",))
    with pytest.raises(ShardingError, match="has the devices"):
        spmd.mark_sharding(x, far, ("x", None))
    torch.testing.assert_close((x - x).cpu(), torch.zeros(16, 8))
    assert spmd.sharding_of(x) is None


def test_two_meshes_in_one_program(executables):
    x = spmd.mark_sharding(on_device(16, 8), WIDE, ("data", None))
    y = spmd.mark_sharding(on_device(16, 8), ONE_AXIS, ("x", None))
    expected = y.cpu()
    for _ in range(4):
        y.add_(x)
        expected += x.cpu()
        xla_dynamo.sync()
        torch.testing.assert_close(y.cpu(), expected)
        assert shards(y) == [(2, 8)] * 8
    assert executables() == 2  # the second is for the names of the common mesh's axes


def test_meshes_without_a_common_one():
    x = spmd.mark_sharding(on_device(16, 8), WIDE, ("data", None))
    y = spmd.mark_sharding(on_device(16, 8), MIXED, ("data", None))
    z = x + y
    with pytest.raises(ShardingError, match="partitioned over one mesh"):
        xla_dynamo.sync()
    spmd.mark_sharding(y, WIDE, ("data", None))
    torch.testing.assert_close(z.cpu(), x.cpu() + y.cpu())


def test_a_mesh_of_one_device_shards_nothing():
    one = Mesh([0], (1,), ("x",))
    x = spmd.mark_sharding(on_device(16, 8), one, ("x", None))
    y = spmd.mark_sharding(x + 1, one, (None, "x"))
    torch.testing.assert_close(y.cpu(), x.cpu() + 1)


def test_lazy_programs_are_not_sharded_by_marks_of_others():
    spmd.mark_sharding(kept := torch.ones(8, 4), WIDE, ("data", None))
    x = torch.ones(8, 4, device=xla_dynamo.device())
    y = x.sin() + 1
    torch.testing.assert_close(y.cpu(), kept.sin() + 1)
    assert spmd.sharding_of(y) is None


def test_a_mark_of_a_pending_tensor_can_be_taken_off():
    x = on_device(16, 8)
    y = spmd.mark_sharding(x + 1, WIDE, ("data", None))
    spmd.clear_sharding(y)
    xla_dynamo.sync()
    assert spmd.sharding_of(y) is None
    torch.testing.assert_close(y.cpu(), x.cpu() + 1)


def test_a_mark_of_an_expanded_tensor_changes_nothing():
    x = on_device(1, 8)
    y = (x + 1).expand(16, 8)
    spmd.mark_sharding(y, WIDE, ("data", None))
    torch.testing.assert_close(y.cpu(), (x.cpu() + 1).expand(16, 8))


def test_what_a_program_made_is_shown(capsys):
    y = spmd.mark_sharding(on_device(16, 8), WIDE, ("data", "model")).sin()
    assert spmd.get_sharding_text(y) == "{devices=[2,4]0,1,2,3,4,5,6,7}"
    spmd.visualize_tensor_sharding(y, use_color=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if "CPU" in line]
    assert [line.replace("│", "").split() for line in lines] == [
        ["CPU", "0", "CPU", "1", "CPU", "2", "CPU", "3"],
        ["CPU", "4", "CPU", "5", "CPU", "6", "CPU", "7"],
    ]


def test_what_is_marked_in_a_compiled_region_alone_stays_sharded():
    x = on_device(16, 8).requires_grad_()
    mark = torch.compile(spmd.mark_sharding_with_gradients, backend="openxla", fullgraph=True)
    marked = mark(x, WIDE, ("data", "model"))
    assert axes(marked) == (("data",), ("model",))
    torch.testing.assert_close(marked.sum().cpu(), x.cpu().sum())
    (found,) = torch.autograd.grad((marked * 2).sum(), x)
    torch.testing.assert_close(found.cpu(), torch.full((16, 8), 2.0))
