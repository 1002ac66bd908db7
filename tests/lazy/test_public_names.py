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
    with pytest.raises(ValueError, match="expected the device 'xla:0', but got 'cpu'"):
        torch.xla.set_device("cpu")
    for device in (1, "xla:1"):
        with pytest.raises(RuntimeError, match=r"invalid device ordinal 1.*'xla:0'"):
            torch.xla.set_device(device)


def test_the_devices():
    assert xla_dynamo.devices() == [xla_dynamo.xla_device()] == [xla_dynamo.device()]
    assert xla_dynamo.device_count() == 1
    kind = xla_dynamo.xla_device_hw("xla:0")
    assert kind in ("CPU", "CUDA")
    assert xla_dynamo.real_devices() == [f"{kind}:0"]
    assert xla_dynamo.xla_device(0, kind) == xla_dynamo.device()
    assert xla_dynamo.is_master_ordinal()
    assert xla_dynamo.is_master_ordinal(local=False)
    with pytest.raises(RuntimeError, match="no device of kind 'TPU'"):
        xla_dynamo.xla_device(devkind="TPU")
    with pytest.raises(ValueError, match="expected the device 'xla:0'"):
        xla_dynamo.xla_device_hw("cpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda: xla_dynamo.device(3),
        lambda: xla_dynamo.xla_device(3),
        lambda: torch.ones(2, device="xla:3"),
        lambda: torch.tensor([2], device="xla:3"),
        lambda: torch.ones(2).to("xla:3"),
        lambda: torch.ones(2, device="xla").to("xla:3"),
        lambda: torch.ones(2, device="xla").new_zeros(2, device="xla:3"),
        lambda: torch.nn.Linear(2, 2).to("xla:3"),
    ],
)
def test_other_indices_are_refused(make):
    with pytest.raises(RuntimeError, match="invalid device ordinal 3: there is one device"):
        make()


def test_seeds_and_states_of_random_numbers():
    xla_dynamo.manual_seed(7)
    first = torch.rand(3, device="xla").tolist()
    state = xla_dynamo.get_rng_state()
    second = torch.rand(3, device="xla").tolist()
    assert first != second
    xla_dynamo.set_rng_state(state)
    assert torch.rand(3, device="xla").tolist() == second
    xla_dynamo.set_rng_state(7, "xla:0")  # a seed, as in PyTorch/XLA
    assert torch.rand(3, device="xla").tolist() == first
    torch.manual_seed(7)
    assert torch.rand(3, device="xla").tolist() == first


def test_the_device_has_the_number_of_its_process_too(monkeypatch):
    """Scripts for other devices, of which each process sees all, ask for that one."""
    job = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert torch.accelerator.current_accelerator() == torch.device("xla")
    assert torch.accelerator.device_count() == 4
    torch.accelerator.set_device_index(1)
    for device in (1, "xla:1", torch.device("xla", 1), "xla:0"):
        assert torch.ones(2).to(device).device == torch.device("xla", 0)
        assert torch.ones(2, device=device).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="there is one device, 'xla:0', which is 'xla:1' too"):
        torch.ones(2, device="xla:2")
