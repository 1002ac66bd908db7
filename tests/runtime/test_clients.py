"""Clients of PJRT are made as they were configured, once a process."""

import textwrap
import types

import pytest
import torch

from tests.fresh_process import python
from xla_dynamo.errors import OptionError, UnsupportedTensor
from xla_dynamo.runtime import clients
from xla_dynamo.runtime.clients import ClientConfiguration, placement_at, placement_of
from xla_dynamo.runtime.placement import Placement

COUNT = """
    import torch, xla_dynamo
    from xla_dynamo.runtime import clients
    f = torch.compile(lambda x: x * 2, backend="openxla")
    assert f(torch.ones(3)).tolist() == [2, 2, 2]
    print(len(clients.devices_of("cpu")))
"""


def test_the_cpu_is_one_device():
    assert python(COUNT, CPU_NUM_DEVICES="1") == "1"


def test_the_cpu_as_several_devices():
    assert python(COUNT, CPU_NUM_DEVICES="3") == "3"


def test_configured_in_the_program():
    configure = """
    from xla_dynamo.runtime.clients import ClientConfiguration, configure
    configure(ClientConfiguration(cpu_devices=2))
    """
    assert python(textwrap.dedent(configure) + textwrap.dedent(COUNT)) == "2"


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5", "", "100000"])
def test_what_is_no_number_of_devices(monkeypatch, given):
    monkeypatch.setenv("CPU_NUM_DEVICES", given)
    with pytest.raises(OptionError, match="CPU_NUM_DEVICES must be an integer from 1"):
        ClientConfiguration.from_environment()


@pytest.mark.parametrize("given", [0, -1, "2", None])
def test_what_no_configuration_may_have(given):
    with pytest.raises(OptionError, match="cpu_devices must be an integer from 1"):
        ClientConfiguration(cpu_devices=given)


def test_too_late():
    placement_at("cpu", 0)
    made = clients.ClientConfiguration(len(clients.devices_of("cpu")))
    clients.configure(made)  # as it is
    with pytest.raises(OptionError, match="before anything is compiled"):
        clients.configure(ClientConfiguration(cpu_devices=7))
    assert placement_at("cpu", 0).torch_device == torch.device("cpu")


def test_placements():
    placement = placement_of(torch.device("cpu"))
    assert placement is placement_at("cpu", 0)
    assert placement.platform == placement.device.platform == "cpu"
    assert not placement.has_streams
    with pytest.raises(UnsupportedTensor, match="no PJRT platform for tensors on 'mps'"):
        placement_of(torch.device("mps", 0))


def test_the_platform_of_a_gpu():
    client = types.SimpleNamespace(platform="gpu", _raw_platform="cuda", process_index=lambda: 0)
    device = types.SimpleNamespace(platform="gpu", client=client, process_index=0)
    assert Placement(torch.device("cuda", 0), (device,)).platform == "cuda"
