"""Buffers of devices whose memory torch does not share: each way is a copy."""

import jax
import pytest
import torch

from xla_dynamo.runtime.buffers import download, import_donated, import_tensor
from xla_dynamo.runtime.clients import placement_on
from xla_dynamo.runtime.jaxlib_private import buffer_address
from xla_dynamo.runtime.placement import Placement

HERE = placement_on("cpu").device
ELSEWHERE = jax.devices("cpu")[0]  # of a client that is not ours, as a TPU's is not


@pytest.mark.parametrize("device", [HERE, ELSEWHERE], ids=["this client", "another client"])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.arange(4),
        torch.tensor(2.5, dtype=torch.float64),
        torch.randn(3).bfloat16(),
        torch.tensor([True, False]),
        torch.randn(2).to(torch.float8_e4m3fn),
        torch.zeros(0, 3),
        torch.randn(2, dtype=torch.complex64),
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_there_and_back(tensor, device):
    placement = Placement(torch.device("cpu"), (device,), shares_memory=False)
    for give in (import_tensor, import_donated):
        buffer = give(tensor, placement)
        assert buffer.device is device
        back = download(buffer)
        assert back.dtype == tensor.dtype
        assert back.shape == tensor.shape
        assert torch.equal(back.view(torch.uint8) if back.ndim else back, _bytes(tensor))
        if tensor.numel():
            assert len({tensor.data_ptr(), buffer_address(buffer), back.data_ptr()}) == 3


def _bytes(tensor):
    return tensor.view(torch.uint8) if tensor.ndim else tensor
