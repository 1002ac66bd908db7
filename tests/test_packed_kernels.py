"""Kernels of oneDNN's that are wrong, where packed convolutions take another one. All cold."""

import pytest
import torch
from torch import nn

from tests.packing import DTYPES, always, assert_packed, needs_onednn

__all__ = ["always"]  # a fixture
pytestmark = needs_onednn


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="oneDNN has no bfloat16 here")
@pytest.mark.parametrize(("size", "step"), [(2, 2), ((3, 4), 2), (4, (1, 4)), ((1, 6), 6)])
@pytest.mark.parametrize("channels", [16, 48, 80, 96])
def test_windows_and_steps_of_an_even_number_of_columns(channels, size, step):
    """With AMX, of channels that are no multiple of 32, oneDNN 3.2 reads the wrong columns."""
    conv = nn.Conv2d(channels, 40, size, step).to(torch.bfloat16)
    assert_packed(conv, torch.randn(2, channels, 28, 28, dtype=torch.bfloat16), 1)
