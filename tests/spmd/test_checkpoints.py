"""Checkpoints of sharded models, saved at one shape of the mesh and loaded at another."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import xla_dynamo
from tests.spmd.checkpoints import equal, manager_of
from tests.spmd.sharding import ONE_AXIS, TALL, WIDE, mlp
from xla_dynamo import spmd
from xla_dynamo.distributed_checkpoint import (
    SPMDLoadPlanner,
    SPMDSavePlanner,
    prime_optimizer,
)
from xla_dynamo.errors import UnsupportedError


def one_axis(model):
    for p in model.parameters():
        spmd.mark_sharding(p, ONE_AXIS, ("x",) + (None,) * (p.dim() - 1))


def grid(mesh):
    def mark(model):
        spmd.mark_sharding(model[0].weight, mesh, ("model", "data"))
        spmd.mark_sharding(model[0].bias, mesh, (("data", "model"),))
        spmd.mark_sharding(model[2].weight, mesh, (None, ("model", "data")))

    return mark


DIVISIONS = {
    "8": (one_axis, ONE_AXIS),
    "2x4": (grid(WIDE), WIDE),
    "4x2": (grid(TALL), TALL),
    "1": (None, None),
}


class Run:
    """A model in training, sharded in one of the ways."""

    def __init__(self, division, seed):
        mark, self.mesh = DIVISIONS[division]
        torch.manual_seed(seed)
        self.model = mlp()
        with torch.no_grad():
            for p in self.model.parameters():
                p.add_(torch.randn_like(p) * seed * 0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        if mark is not None:
            mark(self.model)
        self.step = xla_dynamo.train_step(
            self.model, lambda m, x, y: (m(x) - y).square().mean(), self.optimizer
        )

    def train(self, steps):
        losses = []
        for number in steps:
            generator = torch.Generator().manual_seed(number)
            x, y = (torch.randn(16, n, generator=generator) for n in (32, 24))
            if self.mesh is not None:
                spmd.mark_sharding(x, self.mesh, (self.mesh.axis_names[0], None))
            losses.append(self.step(x, y).item())
        return losses

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, manager, step):
        prime_optimizer(self.optimizer)
        state = self.state()
        manager.restore(step, state)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


@pytest.mark.parametrize("to", DIVISIONS)
def test_saved_on_eight_and_loaded(tmp_path, to):
    """Model and AdamW's state come back bit for bit, and training goes on as if unbroken."""
    run = Run("8", seed=0)
    run.train(range(3))
    manager = manager_of(tmp_path)
    assert manager.save(3, run.state())
    other = Run(to, seed=1)
    marks = [spmd.sharding_of(p) for p in other.model.parameters()]
    other.optimizer.param_groups[0]["lr"] = 0.5
    other.load(manager_of(tmp_path), 3)
    equal(other.state(), run.state())
    assert [spmd.sharding_of(p) for p in other.model.parameters()] == marks
    for p, mark in zip(other.model.parameters(), marks, strict=True):
        assert spmd.sharding_of(other.optimizer.state[p]["exp_avg"]) == mark
    wanted, losses = run.train(range(3, 8)), other.train(range(3, 8))
    if to == "8":
        assert losses == wanted
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=0)


SPECS = {
    "8": (ONE_AXIS, ("x", None)),
    "8 columns": (ONE_AXIS, (None, "x")),
    "2x4": (WIDE, ("data", "model")),
    "4x2 turned": (TALL, ("model", "data")),
    "rows by both": (WIDE, (("model", "data"), None)),
    "2 of 8": (WIDE, ("data", None)),
    "whole": (WIDE, (None, None)),
    "none": None,
}


def tensors(spec, fill=torch.randn):
    """Tensors of several dtypes and layouts, sharded in one way."""
    found = {
        "float32": fill(16, 32),
        "bfloat16": fill(16, 8).bfloat16(),
        "int64": (fill(8, 16) * 100).long(),
        "bool": fill(8, 8) > 0,
        "turned": fill(32, 16).T,
        "step": fill(()),
        "empty": fill(0, 8),
    }
    if SPECS[spec] is not None:
        for value in found.values():
            if value.dim() == 2:
                spmd.mark_sharding(value, *SPECS[spec])
    return found


@pytest.mark.parametrize("to", SPECS)
@pytest.mark.parametrize("saved", SPECS)
def test_every_pair_of_divisions(tmp_path, saved, to):
    source, target = tensors(saved), tensors(to)
    marks = {name: spmd.sharding_of(value) for name, value in target.items()}
    kept = dict(target)
    manager = manager_of(tmp_path)
    manager.save(0, {"nested": {"list": [source]}})
    state = {"nested": {"list": [target]}}
    manager.restore(0, state)
    equal(kept, source)  # in place
    assert {name: spmd.sharding_of(value) for name, value in kept.items()} == marks
    assert state["nested"]["list"][0]["turned"].stride() == (1, 16)


def chunks(folder):
    metadata = dcp.FileSystemReader(folder).read_metadata()
    return {
        name: [(tuple(c.offsets), tuple(c.sizes)) for c in entry.chunks]
        for name, entry in metadata.state_dict_metadata.items()
    }


def test_each_shard_is_written_once(tmp_path):
    state = {"eight": torch.randn(16, 4), "two": torch.randn(8, 4), "one": torch.randn(8, 4)}
    spmd.mark_sharding(state["eight"], WIDE, (("model", "data"), None))
    spmd.mark_sharding(state["two"], WIDE, (None, "data"))  # which four devices each share
    spmd.mark_sharding(state["one"], WIDE, (None, None))
    manager_of(tmp_path).save(0, state)
    found = chunks(tmp_path / "0")
    assert sorted(found["eight"]) == [((2 * i, 0), (2, 4)) for i in range(8)]
    assert found["two"] == [((0, 0), (8, 2)), ((0, 2), (8, 2))]
    assert found["one"] == [((0, 0), (8, 4))]


def plain_save(state, folder, **settings):
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.save(state, checkpoint_id=folder, no_dist=True, **settings)


def plain_load(state, folder, **settings):
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.load(state, checkpoint_id=folder, no_dist=True, **settings)


def test_torchs_own_functions(tmp_path):
    """Planners of ours and of torch's read what the other one wrote, also as one file."""
    source = tensors("2x4")
    plain_save(source, tmp_path / "ours", planner=SPMDSavePlanner())
    assert len(chunks(tmp_path / "ours")["float32"]) == 8
    plain_save(source, tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        for planner in (dcp.DefaultLoadPlanner(), SPMDLoadPlanner()):
            target = tensors("8 columns")
            plain_load(target, tmp_path / folder, planner=planner)
            equal(target, source)
    dcp_to_torch_save(tmp_path / "ours", tmp_path / "one.pt")
    equal(torch.load(tmp_path / "one.pt"), source)
    manager_of(tmp_path).save(7, source)
    target = tensors("none")
    plain_load(target, tmp_path / "7")
    equal(target, source)


def test_partial_loads(tmp_path):
    source = tensors("8")
    plain_save(source, tmp_path / "part", planner=SPMDSavePlanner())
    target = tensors("2x4") | {"more": torch.ones(3)}
    planner = SPMDLoadPlanner(allow_partial_load=True)
    plain_load(target, tmp_path / "part", planner=planner)
    equal(target, source | {"more": torch.ones(3)})


def test_compiled_code_sees_what_was_loaded(tmp_path):
    """The devices keep shards of marked tensors between calls; a load is a change of these."""
    model, x = mlp(), torch.randn(16, 32)
    one_axis(model)
    manager = manager_of(tmp_path)
    manager.save(0, model.state_dict())
    fast = torch.compile(model, backend="openxla")
    with torch.no_grad():
        wanted = fast(x)
        for p in model.parameters():
            p.zero_()
        assert not fast(x).any()
        manager.restore(0, model.state_dict())
        assert torch.equal(fast(x), wanted)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "dampened": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True, weight_decay=0.1),
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_prime_optimizer(tmp_path, name):
    """It makes the state that a step makes, and a checkpoint of that can be loaded into it."""
    models = [mlp(), mlp()]
    for model in models:
        one_axis(model)
    stepped, primed = (OPTIMIZERS[name](model.parameters()) for model in models)
    models[0](torch.randn(4, 32)).square().sum().backward()
    stepped.step()
    models[1][0].weight.grad = grad = torch.ones(64, 32)
    assert prime_optimizer(primed) is primed
    equal(models[1].state_dict(), mlp().state_dict())  # which have their values
    assert models[1][0].weight.grad is grad
    assert models[1][2].weight.grad is None
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        assert primed.state[q].keys() == stepped.state[p].keys()
        for key, value in primed.state[q].items():
            if torch.is_tensor(value):
                of = stepped.state[p][key]
                assert (value.shape, value.dtype) == (of.shape, of.dtype)
                assert spmd.sharding_of(value) == (
                    spmd.sharding_of(q) if value.shape == q.shape else None
                )
    manager = manager_of(tmp_path)
    manager.save(0, stepped.state_dict())
    state = primed.state_dict()
    manager.restore(0, state)
    primed.load_state_dict(state)
    equal(primed.state_dict(), stepped.state_dict())


def test_optimizers_that_cannot_be_primed():
    with pytest.raises(UnsupportedError, match="cannot make a step of LBFGS"):
        prime_optimizer(torch.optim.LBFGS(mlp().parameters()))
