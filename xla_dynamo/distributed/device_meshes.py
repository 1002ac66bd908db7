"""Let torch's `DeviceMesh` and `DTensor` of the device 'xla' be of processes, as of other devices.

Torch's functions leave the device type "xla" to torch_xla: `DeviceMesh` makes no process groups for
it, and `distribute_tensor` imports torch_xla. Nothing else in them is about that device. So each is
given a copy of its own code in which that literal is another one. Torch's functions that lie
elsewhere have imported them by name, and therefore the code is changed and not the name.
"""

import functools
import types
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import distribute_module, distribute_tensor

_NOBODYS = "xla of torch_xla"


@functools.cache
def let_meshes_be_of_processes() -> None:
    """From now on, device meshes of the type "xla" are of processes, in all threads."""
    functions: tuple[Any, ...] = (DeviceMesh.__init__, distribute_tensor, distribute_module)
    for function in functions:
        function.__code__ = _without_xla(function.__code__)


def _without_xla(code: types.CodeType) -> types.CodeType:
    changed = tuple(
        _NOBODYS if c == "xla" else _without_xla(c) if isinstance(c, types.CodeType) else c
        for c in code.co_consts
    )
    return code.replace(co_consts=changed)
