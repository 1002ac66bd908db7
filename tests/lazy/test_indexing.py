"""Indices that are masks, and indices and values that do not fit together."""

import contextlib

import pytest
import torch

import xla_dynamo

XLA = xla_dynamo.device()


def both(f):
    """What a function gives on the device and on the CPU."""
    return f(XLA).cpu(), f(torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_masks(dtype):
    def read(device):
        x = torch.arange(12.0, device=device).view(3, 4)
        mask = torch.tensor([1, 0, 1], dtype=dtype, device=device)
        small = x.sum(1).lt(30).to(dtype)
        return torch.cat([x[mask].flatten(), x[mask, :2].flatten(), x[small][0]])

    def write(device):
        x = torch.arange(12.0, device=device).view(3, 4)
        mask = torch.tensor([1, 0, 1], dtype=dtype, device=device)
        x[mask] = torch.full((2, 4), -1.0, device=device)
        x[mask, 1] = torch.tensor([7.0, 8.0], device=device)
        x.index_put_((mask,), torch.ones(2, 4, device=device), accumulate=True)
        return x

    old = pytest.warns(UserWarning, match="uint8 is now deprecated")
    with old if dtype == torch.uint8 else contextlib.nullcontext():
        for f in (read, write):
            torch.testing.assert_close(*both(f), rtol=0, atol=0)


@pytest.mark.parametrize(
    "fail",
    [
        lambda x: x.__setitem__(([0, 1], [0, 1, 2]), 0),
        lambda x: x.__setitem__(0, torch.ones(3, device=x.device)),
        lambda x: x.__setitem__((slice(None), [0, 1]), torch.ones(3, 3, device=x.device)),
        lambda x: x.index_put_((torch.tensor([0, 1], device=x.device),), x.new_ones(3, 4)),
        lambda x: x[:0][torch.zeros(1, dtype=torch.int64, device=x.device)],
        lambda x: x.__setitem__(x > 5, torch.ones(3, device=x.device)),
        lambda x: x[torch.zeros(5, dtype=torch.bool, device=x.device)],
    ],
    ids=range(7),
)
def test_errors_are_raised_at_once(fail):
    """In eager's words, and nothing of the call is left to fail later."""
    with pytest.raises((RuntimeError, IndexError)) as expected:
        fail(torch.arange(12.0).view(3, 4))
    x = torch.arange(12.0, device=XLA).view(3, 4)
    with pytest.raises(expected.type) as actual:
        fail(x)
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]
    xla_dynamo.sync()
    assert x.sum().item() == 66
