"""The public names of the lazy device, and torch's module for it."""

import pytest
import torch

import xla_dynamo
import xla_dynamo.lazy


def test_names_are_documented_functions():
    for name in ("device", "sync"):
        public = getattr(xla_dynamo, name)
        assert public is getattr(xla_dynamo.lazy, name)
        assert public.__doc__
        assert callable(public), f"{name}: a module of that name hides it"


def test_torch_knows_the_device():
    assert torch.xla.is_available()
    assert torch.accelerator.current_accelerator().type == "xla"
    assert torch.xla.device_count() == 1
    assert torch.xla.current_device() == 0
    torch.xla.set_device("xla:0")
    with torch.xla.device(0), torch.device("xla"):
        x = torch.ones(2) + 1
    assert x.device == xla_dynamo.device()
    torch.xla.synchronize()
    with pytest.raises(ValueError, match="there is one device, 'xla:0'"):
        torch.xla.set_device("cpu")
    with pytest.raises(ValueError, match="there is one device, 'xla:0'"):
        torch.xla.set_device(1)
