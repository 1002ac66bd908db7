"""The order of torch's streams and PJRT's, as far as a machine without a GPU shows it."""

import dataclasses

import pytest
import torch

from xla_dynamo.calls.supply import supply_of
from xla_dynamo.memory.one_device import OneDevice
from xla_dynamo.programs.layouts import input_layout
from xla_dynamo.programs.program import Input
from xla_dynamo.runtime import buffers, streams
from xla_dynamo.runtime.buffers import import_tensor, import_undonated
from xla_dynamo.runtime.clients import placement_at
from xla_dynamo.runtime.jaxlib_private import buffer_address
from xla_dynamo.runtime.placement import Placement

CPU = placement_at("cpu", 0)
X = torch.arange(64.0)


@pytest.fixture
def gpu(monkeypatch):
    """A placement that has streams, on the CPU; what is waited for stands in the list."""
    placement = Placement(torch.device("cuda", 0), CPU.devices)
    waited = []
    for module in (streams, buffers):
        monkeypatch.setattr(module, "stream_after_torch", waited.append)
    monkeypatch.setattr(streams, "wait_for_torch", waited.append)
    return placement, waited


def test_one_argument_waits_for_all(gpu):
    placement, waited = gpu
    given = [import_tensor(X, CPU), import_tensor(X, CPU)]
    first, second = streams.after_torch(given, placement)
    assert first is not given[0]
    assert second is given[1]
    assert buffer_address(first) == X.data_ptr()
    assert waited == [placement]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_host_waits_where_no_argument_can(gpu, devices):
    placement, waited = gpu
    given = [import_tensor(X, CPU)] * (devices - 1)
    placement = dataclasses.replace(placement, devices=CPU.devices * devices)
    assert streams.after_torch(given, placement) is given
    assert waited == [placement]


def test_an_import_waits_if_it_is_told_torchs_stream(gpu):
    placement, waited = gpu
    import_tensor(X, placement)
    assert not waited
    import_tensor(X, placement, 0)
    assert waited == [placement]


def test_odd_addresses_are_copied(gpu):
    placement, _ = gpu
    assert buffer_address(import_tensor(X[16:], placement)) == X[16:].data_ptr()
    odd = import_tensor(X[1:], placement)
    assert buffer_address(odd) % 16 == 0
    assert buffers.export_buffer(odd).equal(X[1:])


def test_a_program_does_not_write_into_what_must_not_change(gpu):
    placement, _ = gpu
    assert buffer_address(import_undonated(X, placement)) != X.data_ptr()
    assert buffer_address(import_undonated(X, CPU)) == X.data_ptr()


def test_each_call_waits(gpu, monkeypatch):
    placement, waited = gpu
    monkeypatch.setattr(torch.Tensor, "device", placement.torch_device)
    supply = supply_of([Input(0, input_layout(X))], *_inputs(OneDevice(placement)))
    for count in range(1, 5):  # also when the buffer of the tensor is known
        (buffer,) = supply([X], 0)
        assert buffer_address(buffer) == X.data_ptr()
        assert len(waited) == count


def _inputs(memory):
    return memory, memory.inputs
