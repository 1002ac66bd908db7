"""What a process group of the backend 'xla' changes in torch, for all threads."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from xla_dynamo.distributed.device_meshes import let_meshes_be_of_processes
from xla_dynamo.distributed.reducers import let_reducers_count_on_host
from xla_dynamo.distributed.shared_draws import let_dtensors_draw
from xla_dynamo.torch_private import change_default_device


def _xla_where_it_is(ask: Callable[..., torch.device]) -> Callable[..., torch.device]:
    """The device of groups: 'xla' for ours, which torch would take for one of the CPU."""

    @functools.wraps(ask)
    def device(group: Any = None) -> torch.device:
        asked = dist.group.WORLD if group is None else group
        is_ours = isinstance(asked, dist.ProcessGroup) and asked.name() == "xla"
        return torch.device("xla") if is_ours else ask(group)

    return device


@functools.cache
def change_torch() -> None:
    """Let torch's meshes, reducers and draws of DTensors be for the device 'xla', too."""
    let_meshes_be_of_processes()
    let_reducers_count_on_host()
    let_dtensors_draw()
    change_default_device(_xla_where_it_is)
