"""A training step on marked parameters is one partitioned program with the losses of one device."""

import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import ONE_AXIS, WIDE, kept_shards, mlp
from xla_dynamo import spmd


def data_parallel(model):
    pass


def tensor_parallel(model):
    spmd.mark_sharding(model[0].weight, WIDE, ("model", None))
    spmd.mark_sharding(model[0].bias, WIDE, ("model",))
    spmd.mark_sharding(model[2].weight, WIDE, (None, "model"))


def fully_sharded(model):
    for p in model.parameters():
        spmd.mark_sharding(p, ONE_AXIS, ("x",) + (None,) * (p.dim() - 1))


RECIPES = {data_parallel: ONE_AXIS, tensor_parallel: WIDE, fully_sharded: ONE_AXIS}


def losses(recipe=None):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = xla_dynamo.train_step(model, lambda m, x, y: (m(x) - y).square().mean(), optimizer)
    if recipe is not None:
        recipe(model)
    torch.manual_seed(1)
    found = []
    for _ in range(20):
        x, y = torch.randn(16, 32), torch.randn(16, 24)
        if recipe is not None:
            mesh = RECIPES[recipe]
            spmd.mark_sharding(x, mesh, (mesh.axis_names[0], None))
        found.append(step(x, y).item())
    return torch.tensor(found), [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_twenty_steps(recipe):
    (alone, parameters), (sharded, others) = losses(), losses(recipe)
    torch.testing.assert_close(sharded, alone, rtol=1e-4, atol=0)
    torch.testing.assert_close(others, parameters, rtol=1e-3, atol=1e-4)


def test_the_devices_hold_their_share():
    """Of weights and of AdamW's state, fully sharded, each device keeps an eighth of the bytes."""
    model = mlp((64, 512, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = xla_dynamo.train_step(model, lambda m, x: m(x).square().mean(), optimizer)
    fully_sharded(model)
    for _ in range(2):
        step(torch.randn(16, 64))
    weights = [layer.weight for layer in (model[0], model[2])]
    state = [optimizer.state[w][name] for w in weights for name in ("exp_avg", "exp_avg_sq")]
    assert {spmd.sharding_of(s) for s in state} == {spmd.sharding_of(w) for w in weights}
    for tensor in (*weights, *state):
        (shards,) = kept_shards(tensor)
        rows, columns = tensor.shape
        assert shards == [(rows // 8, columns)] * 8
