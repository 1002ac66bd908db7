"""Data parallel: gradients are summed, and nothing else moves."""

import copy
import math

import pytest
import torch

from tests.spmd.sharding import ONE_AXIS, WIDE, collectives, mlp, moved, sharded
from tests.spmd.small_transformer import MESHES, check_bytes, check_losses, on_meshes, train
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.spmd.recipes import data_parallel, shard_batch


@on_meshes
def test_twenty_steps(name):
    mesh = MESHES[name]
    run = train(lambda model: (data_parallel(model, mesh, mesh.axis_names), mesh, mesh.axis_names))
    check_losses(run)
    assert check_bytes(run) == 1  # parameters are whole
    assert set(collectives(run.executable)) == {"all-reduce"}
    summed = sum(map(math.prod, moved(run.executable, "all-reduce")))
    gradients = sum(p.numel() for p in run.model.parameters())
    assert gradients < summed <= gradients + 2  # the loss and the number of its terms, too


def test_inputs_that_nobody_has_marked():
    model, x = mlp(), torch.randn(16, 32)
    wanted = model(x)
    with torch.no_grad():
        result, executable = sharded(data_parallel(model, ONE_AXIS, "x"), x)
    torch.testing.assert_close(result, wanted)
    assert not collectives(executable)
    assert "f32[2,64]" in executable.hlo
    assert spmd.sharding_of(x) is None
    assert model(x).equal(wanted)  # eager is as before


class Scaled(torch.nn.Module):
    def forward(self, x, *, scale, shift):
        return {"result": (x * scale["by"] + shift, x.sum(), shift)}


def test_what_has_no_batch_stays_whole():
    """Only what has the size of the first tensor is sharded, in containers and by keyword, too."""
    x, by, shift = torch.randn(16, 4), torch.randn(16, 1), torch.randn(4)
    model = Scaled()
    wanted = model(x, scale={"by": by}, shift=shift)
    result, executable = sharded(
        data_parallel(model, WIDE, "data"), x, scale={"by": by}, shift=shift
    )
    torch.testing.assert_close(result, wanted)
    marks = [line for line in executable.stablehlo.splitlines() if "sharding_constraint" in line]
    assert sum('[{"data"}, {?}]' in line for line in marks) == len(marks) == 3


def test_a_copy_is_sharded_too():
    model, x = data_parallel(mlp(), ONE_AXIS, "x"), torch.randn(16, 32)
    copied = copy.deepcopy(model)
    torch.nn.init.zeros_(model[0].weight)
    torch.testing.assert_close(copied(x), mlp()(x))
    with torch.no_grad():
        result, executable = sharded(copied, x)
    torch.testing.assert_close(result, mlp()(x).detach())
    assert "f32[2,64]" in executable.hlo


def test_shard_batch():
    batch = {"x": torch.randn(16, 4), "pair": (torch.randn(8), torch.tensor(1.0)), "name": "a"}
    assert shard_batch(batch, WIDE)["x"] is batch["x"]
    assert spmd.sharding_of(batch["x"]).axes == (("data",), ())
    assert spmd.sharding_of(batch["pair"][0]).axes == (("data",),)
    assert spmd.sharding_of(batch["pair"][1]) is None
    with pytest.raises(ShardingError, match="15 is not divisible by 2"):
        shard_batch(torch.randn(15), WIDE)


def test_the_global_mesh():
    with pytest.raises(ShardingError, match="there is no mesh to shard over"):
        shard_batch(torch.randn(16))
    spmd.set_global_mesh(WIDE)
    assert spmd.sharding_of(shard_batch(torch.randn(16))).mesh == WIDE


def test_an_axis_that_is_not_there():
    for recipe in (data_parallel, shard_batch):
        with pytest.raises(ShardingError, match=r"no axis 'batch': name .*'data', 'model'"):
            recipe(mlp(), WIDE, "batch")
