"""Names of `torch_xla.amp`."""

from typing import Any

import torch


class autocast(torch.autocast):  # noqa: N801 - torch's own name
    """`torch.autocast` for the lazy device."""

    def __init__(
        self,
        device: Any = "xla",
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        """Take the device, and what `torch.autocast` takes."""
        super().__init__(
            torch.device(device).type, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled
        )


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for the lazy device."""

    def __init__(self, *args: Any, use_zero_grad: bool = False, **kwargs: Any) -> None:
        """Take what torch's takes; gradients are zeroed or dropped as the optimizer is asked."""
        super().__init__("xla", *args, **kwargs)
