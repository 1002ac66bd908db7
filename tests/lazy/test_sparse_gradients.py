"""Modules that ask for sparse gradients: dense ones on the device, and the same steps."""

import pytest
import torch
from torch import nn

import xla_dynamo

XLA = xla_dynamo.device()
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1, foreach=False),
}


def trained(device, make):
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, sparse=True, padding_idx=1).to(device)
    bag = nn.EmbeddingBag(6, 3, sparse=True, mode="mean").to(device)
    weights = [*table.parameters(), *bag.parameters()]
    optimizer = make(weights)
    for step in range(3):
        x = torch.tensor([[1, 2, 2], [5, 0, step]], device=device)
        loss = table(x).square().sum() + bag(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        xla_dynamo.sync()
    return [w.detach().cpu() for w in weights], [w.grad.to_dense().cpu() for w in weights]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_embeddings(name):
    torch.testing.assert_close(trained(XLA, OPTIMIZERS[name]), trained("cpu", OPTIMIZERS[name]))


def test_gather():
    gradients = []
    for device in ("cpu", XLA):
        x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
        index = torch.tensor([[0, 0], [2, 1]], device=device)
        torch.gather(x, 1, index, sparse_grad=True).square().sum().backward()
        gradients.append(x.grad.to_dense().tolist())
    assert gradients[0] == gradients[1]


def test_an_optimizer_for_sparse_gradients_alone_says_so():
    """Limitation: the device has no sparse tensors."""
    table = nn.Embedding(6, 3, sparse=True).to(XLA)
    optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)
    table(torch.tensor([1, 2], device=XLA)).sum().backward()
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        optimizer.step()
