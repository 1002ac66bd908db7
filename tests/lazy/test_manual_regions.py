"""Manual regions on tensors of the lazy device."""

import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import WIDE
from xla_dynamo import metrics, spmd
from xla_dynamo.errors import ShardingError

BOTH = ("data", "model")


def summed(x):
    mapped = spmd.shard_map(
        lambda x: spmd.all_reduce(x, axis="model"), WIDE, [BOTH], ("data", None)
    )
    return mapped(x)


@pytest.mark.parametrize("marked", [False, True])
def test_compiled(marked):
    x = torch.randn(16, 8)
    given = x.to(xla_dynamo.device())
    if marked:
        spmd.mark_sharding(given, WIDE, BOTH)
    result = summed(given)
    if marked:
        assert spmd.sharding_of(result).axes == (("data",), ())
    torch.testing.assert_close(result.cpu(), x.reshape(16, 4, 2).sum(1))


def test_gradients():
    x = torch.randn(16, 8).to(xla_dynamo.device()).requires_grad_()
    summed(x.sin()).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), x.detach().cpu().cos())


def local_sum(x):
    """The sum along the axis "model", which each device computes with the shards of others."""
    shard = spmd.enable_manual_sharding(x, BOTH, mesh=WIDE)
    assert shard.shape == (x.shape[0] // 2, x.shape[1] // 4)
    total = spmd.all_reduce(shard * 2, axis="model", mesh=WIDE)
    return shard, spmd.disable_manual_sharding(total, ("data", None), mesh=WIDE)


def summed_by_hand(x):
    return 2 * x.reshape(x.shape[0], 4, -1).sum(1)


@pytest.mark.parametrize("marked", [False, True])
def test_recorded_operators(marked):
    x = torch.randn(16, 8)
    given = x.to(xla_dynamo.device())
    if marked:
        spmd.mark_sharding(given, WIDE, BOTH)
    shard, result = local_sum(given)
    xla_dynamo.sync()  # the shard lives on
    torch.testing.assert_close(result.cpu(), summed_by_hand(x))
    later = spmd.disable_manual_sharding(shard + 1, BOTH, mesh=WIDE)
    given.zero_()  # the region has read the elements of before
    xla_dynamo.sync()
    torch.testing.assert_close(later.cpu(), x + 1)
    del shard
    xla_dynamo.sync()


def test_shards_cannot_be_read_inside():
    x = torch.randn(16, 8)
    shard = spmd.enable_manual_sharding(x.to(xla_dynamo.device()), BOTH, mesh=WIDE)
    for read in (shard.cpu, shard.sum().item, shard.__repr__):
        with pytest.raises(ShardingError, match="disable_manual_sharding"):
            read()
    whole = spmd.disable_manual_sharding(shard, BOTH, (16, 8), mesh=WIDE)
    with pytest.raises(ShardingError, match="full_shape is"):
        spmd.disable_manual_sharding(shard, BOTH, (8, 8), mesh=WIDE)
    torch.testing.assert_close(whole.cpu(), x)


def test_gradients_of_recorded_operators():
    x = torch.randn(16, 8).to(xla_dynamo.device()).requires_grad_()
    local_sum(x.sin())[1].sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu().cos())


def test_later_steps_find_the_program_and_draws_are_shards():
    seen = []
    for _ in range(3):
        x = torch.ones(16, 8, device="xla")
        shard = spmd.enable_manual_sharding(x, BOTH, mesh=WIDE)
        noisy = torch.nn.functional.dropout(shard, 0.5)
        seen.append(spmd.disable_manual_sharding(noisy, BOTH, mesh=WIDE))
        del shard, noisy
        before = metrics.counter_value("UncachedCompile")
        xla_dynamo.sync()
    assert metrics.counter_value("UncachedCompile") == before
    assert set(seen[0].cpu().unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(seen[0].cpu(), seen[1].cpu())


def test_in_eager_mode():
    x = torch.randn(16, 8)
    xla_dynamo.eager_mode(True)
    try:
        shard, result = local_sum(x.to(xla_dynamo.device()))
        torch.testing.assert_close(result.cpu(), summed_by_hand(x))
    finally:
        xla_dynamo.eager_mode(False)
    del shard


def test_tensors_of_the_host_are_refused():
    with pytest.raises(ShardingError, match="compile the function"):
        spmd.enable_manual_sharding(torch.randn(16, 8), BOTH, mesh=WIDE)


def test_what_mixes_shards_and_whole_tensors_is_an_error_and_nothing_else_is():
    x = torch.randn(16, 8).to(xla_dynamo.device())
    whole = torch.zeros(8, 2, device="xla")
    xla_dynamo.sync()
    other = x + 1
    whole.add_(spmd.enable_manual_sharding(x, BOTH, mesh=WIDE))
    with pytest.raises(ShardingError, match="inside of a manual region"):
        whole.cpu()
    xla_dynamo.sync()
    torch.testing.assert_close(other.cpu(), x.cpu() + 1)
    del whole
