"""Names of `torch_xla.utils.dlpack`."""

from typing import Any

import torch
import torch.utils.dlpack


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """A tensor of the device with the elements of a DLPack capsule, or of another library's tensor.

    The elements are copied, since the memory of the device's tensors is written anew by later
    steps.

    Raises:
        UnsupportedDtype: XLA has no form for the elements.
    """
    return torch.utils.dlpack.from_dlpack(ext_tensor).to("xla")
