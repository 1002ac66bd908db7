"""Checkpoints of divided models, saved at one shape of the mesh and loaded at another."""

import pytest
import torch

import xla_dynamo
from tests.spmd.dividing import ONE_AXIS, TALL, WIDE, mlp
from xla_dynamo import spmd
from xla_dynamo.distributed_checkpoint import CheckpointManager, prime_optimizer


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
    """A model in training, divided in one of the ways."""

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


def manager_of(path, **settings):
    return CheckpointManager(path, save_interval=1, chkpt_on_preemption=False, **settings)


def tensors_of(state):
    flat, _ = torch.utils._pytree.tree_flatten_with_path(state)
    return {torch.utils._pytree.keystr(path): value for path, value in flat}


def equal(actual, wanted):
    actual, wanted = tensors_of(actual), tensors_of(wanted)
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        same = torch.equal(actual[name], value) if torch.is_tensor(value) else actual[name] == value
        assert same, name


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
