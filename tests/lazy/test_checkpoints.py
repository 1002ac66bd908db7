"""Checkpoints of sharded tensors of the lazy device, and from there to others."""

import pytest
import torch

import xla_dynamo
from tests.spmd.checkpoints import equal, manager_of
from tests.spmd.sharding import ONE_AXIS, WIDE, mlp
from xla_dynamo import spmd
from xla_dynamo.distributed_checkpoint import prime_optimizer


def trained(mark, steps, device="xla"):
    """A model of a device, sharded or not, and AdamW after some steps."""
    model = mlp().to(device)
    if mark is not None:
        for p in model.parameters():
            spmd.mark_sharding(p, *mark(p))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, range(steps))
    return model, optimizer


def train(model, optimizer, steps):
    losses = []
    for number in steps:
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(number))
        with xla_dynamo.step():
            loss = model(x.to(model[0].weight.device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


def rows(p):
    return ONE_AXIS, ("x",) + (None,) * (p.dim() - 1)


def grid(p):
    return WIDE, ("model", "data")[: p.dim()]


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def on_host(state):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("cpu", copy=True), state)


@pytest.mark.parametrize(
    ("mark", "device", "asynchronous"),
    [
        (rows, "xla", False),
        (grid, "xla", True),
        (None, "xla", False),
        (None, "cpu", True),
        (grid, "cpu", False),
    ],
)
def test_saved_on_eight_and_loaded(tmp_path, mark, device, asynchronous):
    model, optimizer = trained(rows, 3)
    manager = manager_of(tmp_path)
    (manager.save_async if asynchronous else manager.save)(3, state_of(model, optimizer))
    wanted = on_host(state_of(model, optimizer))
    losses = train(model, optimizer, range(3, 6))
    manager.join()
    other, its = trained(mark, 0, device)
    prime_optimizer(its)
    state = state_of(other, its)
    manager.restore(3, state)
    other.load_state_dict(state["model"])
    its.load_state_dict(state["optimizer"])
    equal(on_host(state_of(other, its)), wanted)
    if mark is not None:
        assert {spmd.sharding_of(p).mesh for p in other.parameters()} == {mark(other[0].bias)[0]}
    torch.testing.assert_close(train(other, its, range(3, 6)), losses, rtol=1e-4, atol=0)
    for p in other.parameters():
        of_state = spmd.sharding_of(its.state[p]["exp_avg"])
        if mark is not None and device == "xla":
            assert of_state == spmd.sharding_of(p)


def test_shards_of_results_that_have_no_mark(tmp_path):
    """They are written as the partitioner sharded them, and uneven sizes as they lie: whole."""
    x = spmd.mark_sharding(torch.randn(16, 8).to("xla"), ONE_AXIS, ("x", None))
    y = x + 1
    uneven = spmd.mark_sharding(torch.randn(10, 2).to("xla"), ONE_AXIS, ("x", None))
    manager = manager_of(tmp_path)
    manager.save(0, {"y": y, "uneven": uneven})
    found = {"y": torch.zeros(16, 8), "uneven": torch.zeros(10, 2).to("xla")}
    manager.restore(0, found)
    equal(on_host(found), {"y": x.cpu() + 1, "uneven": uneven.cpu()})
    entries = (tmp_path / "0" / "checksums.json").read_text().count("distcp")
    assert entries == 8 + 5  # ten rows over eight devices: five shards of two
    xla_dynamo.sync()
