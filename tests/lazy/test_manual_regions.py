"""Manual regions on tensors of the lazy device."""

import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import WIDE
from xla_dynamo import spmd
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


def test_recorded_operators_are_refused():
    x = torch.randn(16, 8).to(xla_dynamo.device())
    with pytest.raises(ShardingError, match="compile the function"):
        spmd.enable_manual_sharding(x, BOTH, mesh=WIDE)
