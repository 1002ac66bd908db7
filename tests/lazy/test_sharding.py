"""Marks and the lazy device in one process."""

import pytest
import torch

import xla_dynamo
from tests.spmd.dividing import WIDE
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError


def test_tensors_of_the_lazy_device_are_refused():
    x = torch.ones(8, 4, device=xla_dynamo.device())
    with pytest.raises(ShardingError, match="'xla' cannot be divided yet"):
        spmd.mark_sharding(x, WIDE, ("data", None))
    with pytest.raises(ShardingError, match="cannot be divided yet"):
        torch.compile(
            lambda x: spmd.mark_sharding(x.sin(), WIDE, ("data", None)), backend="openxla"
        )(x)


def test_lazy_programs_are_not_divided_by_marks_of_others():
    spmd.mark_sharding(kept := torch.ones(8, 4), WIDE, ("data", None))
    x = torch.ones(8, 4, device=xla_dynamo.device())
    torch.testing.assert_close((x.sin() + 1).cpu(), kept.sin() + 1)
