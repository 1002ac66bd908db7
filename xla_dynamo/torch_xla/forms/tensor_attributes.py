"""`tensor.is_xla`, which torch answers for PyTorch/XLA's own key alone: True of ours, too."""

import torch


def is_xla(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the device 'xla'."""
    return tensor.device.type == "xla"


torch.Tensor.is_xla = property(is_xla)  # type: ignore[assignment]
