"""Marks that leave dimensions to the partitioner, and marks as statements beside writes."""

import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import ONE_AXIS, WIDE, collectives, sharded
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.spmd.recipes.activations import replicate


def test_a_dimension_is_left_to_the_partitioner():
    """None would gather what is sharded already; UNCONSTRAINED leaves it as it is."""
    x = spmd.mark_sharding(torch.randn(16, 8), WIDE, ("data", None))
    moved = []
    for rows in (None, spmd.UNCONSTRAINED):
        result, executable = sharded(
            lambda x, rows=rows: spmd.mark_sharding(x.sin(), WIDE, (rows, "model")).cos(), x
        )
        torch.testing.assert_close(result, x.sin().cos())
        moved.append(set(collectives(executable)))
    assert moved == [{"all-gather"}, set()]


def test_an_axis_may_be_kept_off():
    """Of x, sharded by rows and columns, only the columns are gathered."""
    x = spmd.mark_sharding(torch.randn(16, 8), WIDE, ("data", "model"))
    result, executable = sharded(lambda x: replicate(x.sin(), WIDE, "model").cos(), x)
    torch.testing.assert_close(result, x.sin().cos())
    assert collectives(executable) == {"all-gather": 1}
    assert "f32[8,8]" in executable.hlo
    assert "f32[16,8]" not in executable.hlo


def test_marks_of_several_meshes():
    x = spmd.mark_sharding(torch.randn(16, 8), ONE_AXIS, ("x", None))

    def f(x):
        return spmd.mark_sharding(x.sin(), WIDE, (spmd.UNCONSTRAINED, "model")).cos()

    for mark in (f, lambda x: replicate(x.sin(), WIDE, "model").cos()):
        result, executable = sharded(mark, x)
        torch.testing.assert_close(result, x.sin().cos())
        assert "f32[8,8]" in executable.hlo or "f32[8,2]" in executable.hlo  # of two halves


def test_only_inside():
    with pytest.raises(ShardingError, match="only marks inside a compiled region"):
        spmd.mark_sharding(torch.randn(16, 8), WIDE, (spmd.UNCONSTRAINED, "model"))


def test_gradients_are_left_to_it_too():
    x = torch.randn(16, 8, requires_grad=True)
    spec = (spmd.UNCONSTRAINED, "model")
    report = xla_dynamo.explain(lambda x: spmd.mark_sharding_with_gradients(x.sin(), WIDE, spec))
    report(x).result.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    for executable in report.report.executables:
        assert '[{?}, {"model"}]' in executable.stablehlo


def test_statements_beside_writes_into_other_memory():
    """Buffers that count, and operators such as `&`, whose names end as those of writes do."""

    def f(x, count):
        h = x.sin()
        spmd.mark_sharding(h, ONE_AXIS, ("x", None))
        count.add_(1)
        return torch.where((h > 0) & (h < 0.5), h, 0)

    x, count = torch.randn(8, 4), torch.zeros(())
    wanted = f(x, count.clone())
    result, executable = sharded(f, x, count)
    torch.testing.assert_close(result, wanted)
    assert count == 1
    line = next(t for t in executable.stablehlo.splitlines() if "sharding_constraint" in t)
    marked = line.split("=")[0].strip()
    assert executable.stablehlo.count(f"{marked},") + executable.stablehlo.count(f"{marked} ") > 1


def test_statements_in_a_training_step():
    w = torch.nn.Parameter(torch.randn(8, 4))

    def loss_fn(model, x):
        h = x @ w.T
        spmd.mark_sharding(h, ONE_AXIS, (None, "x"))
        return h.square().sum()

    step = xla_dynamo.train_step(torch.nn.Module(), loss_fn, torch.optim.SGD([w], 0.1))
    report = xla_dynamo.explain(step)(torch.randn(16, 4))
    assert "f32[16,1]" in report.executables[0].hlo
