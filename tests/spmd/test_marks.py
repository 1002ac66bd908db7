"""Marks at the edges: garbage, views, wrong arguments, transforms of functions."""

import functools
import gc

import pytest
import torch

from tests.spmd.sharding import ONE_AXIS, WIDE
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime import marks

compiled = functools.partial(torch.compile, backend="openxla")


def test_garbage_is_collected_while_a_tensor_is_marked():
    """A marked tensor in a cycle may die wherever Python collects garbage."""

    class Cycle:
        def __init__(self):
            self.me = self
            self.tensor = spmd.mark_sharding(torch.zeros(8), ONE_AXIS, ("x",))

    gc.collect()
    before = len(marks._state.by_storage)
    Cycle()
    with marks._lock:
        gc.collect()
    assert len(marks._state.by_storage) == before


def test_a_tensor_and_its_views_have_marks_of_their_own():
    w = spmd.mark_sharding(torch.randn(16, 8), WIDE, ("data", "model"))
    for view in (w[:8], w.t(), w.view(8, 16)):
        spmd.mark_sharding(view, WIDE, (None, "model"))
        assert spmd.sharding_of(view).axes == ((), ("model",))
        spmd.clear_sharding(view)
        assert spmd.sharding_of(view) is None
        assert spmd.sharding_of(w).axes == (("data",), ("model",))


@pytest.mark.parametrize(
    ("t", "mesh", "spec", "message"),
    [
        (torch.ones(8), WIDE, (1.0,), r"a partition spec is .* \(1.0,\) is none"),
        (torch.ones(8), WIDE, (True,), "a partition spec is"),
        (torch.ones(8), WIDE, {"data": 1}, "a partition spec is"),
        (torch.ones(8), WIDE, None, "a partition spec is"),
        (torch.ones(8), None, ("data",), r"the mesh is an xla_dynamo.spmd.Mesh, and not None"),
        (3, WIDE, ("data",), "takes a tensor, and not 3"),
        (torch.ones(8).to_sparse(), WIDE, ("data",), "only dense tensors are sharded"),
        (torch.ones(8, device="meta"), WIDE, ("data",), "device meta"),
    ],
)
def test_wrong_arguments(t, mesh, spec, message):
    with pytest.raises(ShardingError, match=message):
        spmd.mark_sharding(t, mesh, spec)


def test_forward_mode_derivatives_are_refused():
    """Torch would lose them, without a word."""

    def f(a):
        return spmd.mark_sharding(a * 3, ONE_AXIS, ("x", None))

    x = torch.ones(8, 4)
    with pytest.raises(Exception, match="no forward-mode derivatives"):
        compiled(lambda a, b: torch.func.jvp(f, (a,), (b,))[1])(x, x)
    with pytest.raises(ShardingError, match="inside a transform of"):
        torch.func.vmap(f)(x[None])
