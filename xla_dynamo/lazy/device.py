"""The name 'xla' for torch: `torch.device("xla")`, its kernels, and `torch.xla`."""

import sys

import torch

from xla_dynamo.errors import XlaDynamoError
from xla_dynamo.lazy import device_module
from xla_dynamo.lazy.operators import register_kernels

_acc = torch._C._acc


class _Guard(_acc.DeviceGuard):
    def type_(self) -> torch._C._autograd.DeviceType:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Hooks(_acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def _claim() -> torch.library.Library:
    """Take torch's place for a device of somebody else's, which is one for each process.

    Raises:
        XlaDynamoError: another package has it, or torch_xla has the name.
    """
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", "xla") or hasattr(torch, "xla") or "torch_xla" in sys.modules:
        raise XlaDynamoError(
            f"the 'xla' device is not to be had: the place that torch has for one more device is "
            f"taken, by {name!r}; use torch.compile(..., backend='openxla') on CPU tensors"
        )
    torch.utils.rename_privateuse1_backend("xla")
    torch._register_device_module("xla", device_module)
    _acc.register_python_privateuseone_hook(_Hooks())
    _acc.register_python_privateuseone_device_guard(_Guard())
    library = torch.library.Library("aten", "IMPL")
    register_kernels(library)
    return library


library = _claim()
