"""Torch's exports change kernels for all threads: programs of the device are traced in between."""

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from tests.test_exports_beside_traces import in_two_threads, tables, torch_decomposes, we_export

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


def a_new_program():
    """Each has another graph, so each is traced."""
    number = next(NUMBERS)
    x = torch.ones(1, 1, 2, 2 + number, requires_grad=True)
    on_device = x.detach().to("xla").requires_grad_()
    for tensor in (x, on_device):
        y = F.interpolate(tensor, scale_factor=2.0, mode="bilinear") * number
        y.sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), x.grad)
    xla_dynamo.sync()


NUMBERS = iter(range(1, 10_000))


@pytest.mark.parametrize("export", [torch_decomposes, we_export])
@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_one_thread_exports_and_another_records(export, times):
    a_new_program()
    export()
    before = tables()
    assert not in_two_threads(export, a_new_program, times)
    assert tables() == before
