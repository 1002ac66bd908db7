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


class _SyncFree:
    """Steps that a tensor on the device may skip, without asking for its value."""

    found_inf: torch.Tensor

    def step(self, closure: Any = None, found_inf: torch.Tensor | None = None) -> Any:
        """Update the parameters.

        Args:
            closure: computes the loss anew, if it is given.
            found_inf: a 0-d tensor; if it is 1, parameters and state stay as they are.

        Returns:
            What the closure returned.

        Raises:
            ValueError: `found_inf` has dimensions.
        """
        if found_inf is None:
            return super().step(closure)  # type: ignore[misc]
        if found_inf.dim():
            raise ValueError(
                f"found_inf is a 0-d tensor, and not of shape {tuple(found_inf.shape)}"
            )
        self.found_inf = found_inf.to(torch.float32)
        try:
            return super().step(closure)  # type: ignore[misc]
        finally:
            del self.found_inf


class SGD(_SyncFree, torch.optim.SGD):
    """`torch.optim.SGD` on the device, whose step takes `found_inf`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what torch's takes."""
        super().__init__(*args, **kwargs, fused=True)


class Adam(_SyncFree, torch.optim.Adam):
    """`torch.optim.Adam` on the device, whose step takes `found_inf`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what torch's takes."""
        super().__init__(*args, **kwargs, fused=True)


class AdamW(_SyncFree, torch.optim.AdamW):
    """`torch.optim.AdamW` on the device, whose step takes `found_inf`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what torch's takes."""
        super().__init__(*args, **kwargs, fused=True)
