"""torch.distributed's backend "xla": every form against Gloo, and the wrappers that train on it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import xla_dynamo as xm
from tests.processes.forms import ALONE, FORMS
from tests.processes.jobs import results_of
from tests.processes.small_gpt import batches, loss_fn, losses_alone, new_model


def begin():
    """The rank and the number of processes of a new process group."""
    dist.init_process_group("xla", init_method="xla://")
    return dist.get_rank(), dist.get_world_size()


def differences():
    """The forms that leave something else in tensors of the device than Gloo in the CPU's."""
    rank, size = begin()
    if rank == 0:  # the others wait, and have not used the device yet
        assert torch.ones(2, device="xla").sum().item() == 2
    dist.barrier()
    wrong = []
    for name, form in FORMS.items():
        by_gloo = form(rank, size, lambda t: t.clone())
        made = form(rank, size, lambda t: t.to("xla"))
        for a, b in zip(made, by_gloo, strict=True):
            if a.dtype != b.dtype or not torch.allclose(a.cpu().float(), b.float(), rtol=1e-5):
                wrong.append((name, a.cpu(), b))
    torch.manual_seed(0)
    in_backward = DistributedDataParallel(nn.Linear(3, 3).to("xla"))
    with in_backward.join():  # who has no rows left waits for the others' gradients
        for _ in range(rank + 1):
            in_backward(torch.ones(2, 3, device="xla")).sum().backward()
    for name, form in ALONE.items():
        for a, b in form(rank, size, lambda t: t.to("xla")):
            if not torch.allclose(a.cpu(), b):
                wrong.append((name, a.cpu(), b))
    assert dist.get_backend() == "xla"
    dist.destroy_process_group()
    return wrong


# --- wrappers ------------------------------------------------------------------------------------


def in_ddp(model, size):
    return DistributedDataParallel(model)


def compiled_in_ddp(model, size):
    return DistributedDataParallel(torch.compile(model, backend="openxla"))


def in_fsdp(model, size):
    mesh = init_device_mesh("xla", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def with_zero(model, size):
    return DistributedDataParallel(model)


def by_hand(model, size):
    xm.broadcast_master_param(model)
    return model


def train(wrap, steps):
    """The losses of a model in a wrapper, and the share of parameters and state held here."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = new_model().to("xla")
    whole = sum(p.numel() for p in model.parameters())
    wrapped = wrap(model, size)
    make = torch.optim.AdamW
    if wrap is with_zero:
        optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), make, lr=3e-3)
    else:
        optimizer = make(wrapped.parameters(), lr=3e-3)
    losses = []
    for tokens, labels in batches(rank, size, steps):
        loss = loss_fn(wrapped, tokens.to("xla"), labels.to("xla"))
        loss.backward()
        if wrap is by_hand:
            xm.optimizer_step(optimizer)
        else:
            optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        xm.sync()
        losses.append(mean.item())
    held = sum(local(p).numel() for p in model.parameters()) / whole
    inner = optimizer.optim if wrap is with_zero else optimizer
    state = sum(local(s["exp_avg"]).numel() for s in inner.state.values()) / whole
    return losses, held, state


def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


def train_in_some():
    begin()
    found = [train(wrap, 5) for wrap in (in_ddp, in_fsdp)]
    found.append(synchronised_norm())
    dist.destroy_process_group()
    return found


def train_in_all():
    begin()
    wraps = (in_ddp, compiled_in_ddp, in_fsdp, with_zero, by_hand)
    found = [train(wrap, 20) for wrap in wraps]
    dist.destroy_process_group()
    return found


def synchronised_norm():
    """A batch norm over the rows of all processes, and what the one of the whole batch gives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(4 * size, 3, 5)
    rows = slice(rank * 4, rank * 4 + 4)
    whole, norm = nn.BatchNorm1d(3), nn.SyncBatchNorm(3).to("xla")
    x.requires_grad_()
    own = x.detach()[rows].to("xla").requires_grad_()
    right, made = whole(x), norm(own)
    right.square().cos().sum().backward()
    made.square().cos().sum().backward()
    dist.all_reduce(norm.weight.grad)
    pairs = [
        (made, right[rows]),
        (own.grad, x.grad[rows]),
        (norm.weight.grad, whole.weight.grad),
        (norm.running_mean, whole.running_mean),
        (norm.running_var, whole.running_var),
    ]
    return [(a.detach().cpu(), b.detach()) for a, b in pairs]


def test_every_form_in_two_processes():
    assert results_of(differences, 2) == [[], []]


def test_wrappers_in_two_processes():
    alone = losses_alone(5)
    for (ddp, *_), (fsdp, held, state), norms in results_of(train_in_some, 2):
        torch.testing.assert_close(torch.tensor(ddp), alone, rtol=1e-4, atol=0)
        torch.testing.assert_close(torch.tensor(fsdp), alone, rtol=1e-4, atol=0)
        assert held == state == 0.5
        for made, right in norms:
            torch.testing.assert_close(made, right, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [3, 4, 5, 6])
def test_every_form_in_more_processes(processes):
    assert results_of(differences, processes) == [[]] * processes


@pytest.mark.slow
def test_wrappers_in_four_processes():
    alone = losses_alone(20)
    states = []
    for found in results_of(train_in_all, 4):
        for losses, *_ in found:
            torch.testing.assert_close(torch.tensor(losses), alone, rtol=1e-4, atol=0)
        assert [held for _, held, _ in found] == [1, 1, 0.25, 1, 1]
        states.append(found[3][2])
    assert sum(states) == 1, "ZeRO gives each parameter's state to one process"
