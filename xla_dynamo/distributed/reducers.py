"""Let DDP count used parameters on the host: `find_unused_parameters=True`, `static_graph=True`.

With either option torch's `Reducer` has a map of the parameters that were used, on the host and on
the device, and copies it there through pinned memory. A device that is written in Python cannot
give it any. So the map that is for the device is made on the host too. The `Reducer` then copies
the one into the other, and gives the process group a tensor of the CPU, which goes to Gloo.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.torch_private import TorchDispatchMode, change_makers_of_maps

aten = torch.ops.aten


class _MapsOnHost(TorchDispatchMode):
    """In this block, an `empty` of int32 on the device is one on the host: the Reducer's map.

    It makes nothing else of that dtype: its buckets have those of gradients.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        device = given.get("device")
        is_map = func is aten.empty.memory_format and given.get("dtype") is torch.int32
        if is_map and device is not None and torch.device(device).type == "xla":
            given["device"] = torch.device("cpu")
        return func(*args, **given)


def _with_maps_on_host(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _MapsOnHost():
            return method(*args, **kwargs)

    return run


@functools.cache
def let_reducers_count_on_host() -> None:
    """From now on, torch's Reducer makes no map of used parameters on 'xla', in all threads."""
    change_makers_of_maps(_with_maps_on_host)
