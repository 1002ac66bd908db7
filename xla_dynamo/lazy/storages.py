"""What torch asks of a storage of the device 'xla', which has no memory: an address, and a size.

FSDP frees and allocates parameters through their storages.
"""

from typing import Any

import torch

from xla_dynamo.lazy.contents import let_go
from xla_dynamo.torch_private import number_of_storage

_address_of = torch.UntypedStorage.data_ptr
_resize = torch.UntypedStorage.resize_


def _address(self: torch.UntypedStorage) -> int:
    """The address of the memory; of a storage of the device, a number that no other has."""
    return number_of_storage(self) if self.device.type == "xla" else _address_of(self)


def _resized(self: torch.UntypedStorage, size: int) -> Any:
    """Change the number of bytes. On the device a storage keeps its size, and loses its elements.

    Whoever gives it a size again writes its elements before anybody reads them.
    """
    if self.device.type != "xla":
        return _resize(self, size)
    if size == 0:
        let_go(number_of_storage(self))
    return self


def give_storages_addresses() -> None:
    """Let the storages of the device be asked."""
    torch.UntypedStorage.data_ptr = _address  # type: ignore[method-assign]
    torch.UntypedStorage.resize_ = _resized  # type: ignore[method-assign]
