"""Recurrent networks, for which torch chooses fused cells on the device."""

import copy

import pytest
import torch

import xla_dynamo

CELLS = [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell]
NETWORKS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]


def both(module, *inputs):
    """Results and gradients on the CPU and on the device."""
    found = []
    for device in ("cpu", "xla"):
        twin = copy.deepcopy(module).to(device)
        given = [x.detach().to(device).requires_grad_() for x in inputs]
        outputs = torch.utils._pytree.tree_leaves(twin(*given))
        sum((o * (n + 1)).square().sum() for n, o in enumerate(outputs)).backward()
        tensors = [*outputs, *(x.grad for x in given), *(p.grad for p in twin.parameters())]
        xla_dynamo.sync()  # All in one program; each read alone compiles one of its own.
        found.append([t.detach().cpu() for t in tensors])
    return zip(*found, strict=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind, bias):
    torch.manual_seed(0)
    for expected, actual in both(kind(5, 7, bias=bias), torch.randn(3, 5)):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks(kind, options):
    torch.manual_seed(0)
    for expected, actual in both(kind(5, 4, **options), torch.randn(6, 2, 5)):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_compiled_network(kind):
    torch.manual_seed(0)
    net = kind(5, 4)
    x = torch.randn(6, 2, 5)
    expected = net(x)[0]
    f = torch.compile(copy.deepcopy(net).to("xla"), backend="openxla")
    actual = f(x.to("xla"))[0]
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_train_step():
    torch.manual_seed(0)
    net = torch.nn.LSTM(5, 4).to("xla")
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    step = xla_dynamo.train_step(net, lambda m, x: m(x)[0].square().mean(), optimizer)
    x = torch.randn(6, 2, 5, device="xla")
    losses = [step(x).item() for _ in range(5)]
    assert losses[-1] < losses[0]
