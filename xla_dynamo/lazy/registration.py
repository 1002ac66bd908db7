"""Claim the device name 'xla' in torch, once: `torch.device("xla")`, its kernels, `torch.xla`."""

import sys
import warnings
from typing import Any

import torch

from xla_dynamo import torch_private
from xla_dynamo.errors import XlaDynamoError
from xla_dynamo.lazy import device_module
from xla_dynamo.lazy.accelerator import answer_torch_accelerator
from xla_dynamo.lazy.autocast import register_autocast
from xla_dynamo.lazy.clean_state import clean_state
from xla_dynamo.lazy.compiled_calls import LazyTensors
from xla_dynamo.lazy.contents import new_storage
from xla_dynamo.lazy.memory import placement, value_of
from xla_dynamo.lazy.operators import register_kernels, register_own
from xla_dynamo.lazy.sparse_gradients import register_dense_gradients
from xla_dynamo.lazy.storages import give_storages_addresses
from xla_dynamo.lazy.transfers import uploaded
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.clients import register_device


class _Guard(torch_private.DeviceGuard):
    def type_(self) -> Any:
        return torch_private.DeviceType.PrivateUse1


class _Hooks(torch_private.DeviceHooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def _start_autograd() -> None:
    """Let autograd start its threads, one for each device that it knows now; it starts no more."""
    with clean_state(), torch.enable_grad():
        x = torch.zeros((), device="xla", requires_grad=True)
        try:
            x.clone().backward()
        except RuntimeError:
            warnings.warn(
                "gradients of 'xla' tensors will fail in this process: autograd ran before the "
                "device was known; call xla_dynamo.device() before the first backward()",
                stacklevel=2,
            )


def _restored(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    """What `torch.load(map_location="xla")` makes of a storage; torch would copy its memory."""
    if not location.startswith("xla"):
        return None
    device_module.checked_index(location)
    elements = torch.empty(0, dtype=torch.uint8).set_(storage)
    return new_storage(value_of(uploaded(elements, torch.uint8)))


def _may_take_place(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether `old.data = new` works, by which `Module.to` keeps parameters that are tied.

    Torch says no to a device that it leaves to others, and makes new parameters.
    """
    plain = ("xla", "cpu", "cuda")
    return all(t.device.type in plain and t.layout is torch.strided for t in (old, new))


def _unpinned(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy, where torch would ask for memory that the device pins: this has no use for such.

    A loader with `pin_memory=True` does so of ordinary tensors as soon as there is a device.
    """
    return tensor.clone()


def _claim() -> list[torch.library.Library]:
    """Take torch's place for a device of somebody else's, which is one for each process.

    Raises:
        XlaDynamoError: another package has that place, or torch_xla has the name.
    """
    name = torch_private.device_name()
    # Ours is called so as well where scripts of PyTorch/XLA run.
    theirs = sys.modules.get("torch_xla")
    is_foreign = theirs is not None and not getattr(theirs, "is_of_xla_dynamo", False)
    if name not in ("privateuseone", "xla") or hasattr(torch, "xla") or is_foreign:
        raise XlaDynamoError(
            f"cannot make the 'xla' device: another package, for the device {name!r}, has taken "
            "the one place that torch has for further devices; do not import that package, or use "
            "torch.compile(..., backend='openxla') on CPU tensors"
        )
    torch.utils.rename_privateuse1_backend("xla")
    torch_private.register_device_module("xla", device_module)
    torch_private.register_device_hooks(_Hooks())
    torch_private.register_device_guard(_Guard())
    torch.serialization.register_package(5, lambda storage: None, _restored)
    give_storages_addresses()
    answer_torch_accelerator()
    library = torch.library.Library("aten", "IMPL")
    register_kernels(library)
    register_dense_gradients(library)
    library.impl("_has_compatible_shallow_copy_type", _may_take_place, "PrivateUse1")
    if not torch.cuda.is_available():  # nobody else has memory to pin
        library.impl("_pin_memory", _unpinned, "CPU", allow_override=True)
    register_device("xla", placement, LazyTensors())
    own = torch.library.Library("xla", "IMPL")
    register_own(own)
    return [library, register_autocast(library), own]


_libraries = _claim()  # the kernels are gone with it
_start_autograd()
metrics.forget_operators()


def device(index: int | None = None) -> torch.device:
    """The lazy device, `torch.device("xla", 0)`: tensors that are made there are computed by XLA.

    Raises:
        RuntimeError: another index than 0, since there is one device.
    """
    return torch.device("xla", device_module.checked_index(index or 0))
