"""The public names of the lazy device, and torch's module for it."""

import subprocess
import sys

import pytest
import torch

import xla_dynamo


def test_the_public_function_is_that_of_the_room():
    from xla_dynamo.lazy import registration

    first = [f.__doc__.partition("\n")[0] for f in (xla_dynamo.device, registration.device)]
    assert first[0] == first[1]
    assert xla_dynamo.device() == registration.device()


def test_looking_at_the_names_claims_nothing():
    script = """
import torch
from xla_dynamo import *
import xla_dynamo
assert callable(device) and callable(sync)
assert not hasattr(torch, "xla")
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
assert device().type == "xla"
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


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
