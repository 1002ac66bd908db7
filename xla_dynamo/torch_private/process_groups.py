"""Private parts of torch's wrappers for several processes."""

import importlib
from collections.abc import Callable
from typing import Any

import torch.distributed

_MAKE_MAPS = ("__init__", "_set_static_graph")


def change_makers_of_maps(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Let other methods of DDP's `Reducer` make its maps of used parameters.

    Args:
        change: makes such a method from torch's own.
    """
    reducer = torch.distributed.Reducer
    for name in _MAKE_MAPS:
        setattr(reducer, name, change(getattr(reducer, name)))


def set_dtensor_draws(draws: Any) -> None:
    """Let draws of DTensors be run by this object, a `DTensorDraws`."""
    module: Any = importlib.import_module("torch.distributed.tensor._random")  # slow to import
    module._rng_tracker = draws


def change_default_device(
    change: Callable[[Callable[..., torch.device]], Callable[..., torch.device]],
) -> None:
    """Let another function say which device a process group is for.

    Args:
        change: makes such a function, of a group or None, from torch's own.
    """
    c10d = torch.distributed.distributed_c10d
    c10d._get_pg_default_device = change(c10d._get_pg_default_device)
