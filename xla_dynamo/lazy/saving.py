"""Write tensors of the device to a file as tensors of the CPU."""

from typing import Any

import torch

from xla_dynamo.lazy import memory
from xla_dynamo.lazy.contents import cell_of
from xla_dynamo.lazy.execution import tensors_behind
from xla_dynamo.runtime.processes.job import seat
from xla_dynamo.torch_private import pytree, storage_id


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """Save data with `torch.save`, with its 'xla' tensors moved to the CPU.

    `torch.load` then gives tensors of the CPU, also where there is no such device. Tensors that
    share memory on the device share it in the file, as tied weights do.

    Args:
        data: tensors in lists, tuples and dictionaries of any depth, such as a `state_dict()`.
        file_or_path: where to save it, as for `torch.save`.
        master_only: whether one process of each host writes. All of a job call this, since they
            compute the tensors together; nobody waits until the file is there.
        global_master: whether that is one process of all hosts.
    """
    found = [t for t in pytree.tree_leaves(data) if _is_of_device(t)]
    with tensors_behind(found):  # computed, in all processes
        pass
    here = seat()
    if master_only and (here.rank if global_master else here.local_rank) != 0:
        return
    moved = _on_host(found)
    torch.save(
        pytree.tree_map_only(torch.Tensor, lambda t: moved.get(id(t), t), data), file_or_path
    )


def _is_of_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _on_host(tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Tensors of the CPU, by the ids of those of the device; memory that several show is one."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in {id(t): t for t in tensors}.values():
        groups.setdefault(storage_id(tensor), []).append(tensor)
    moved: dict[int, torch.Tensor] = {}
    for group in groups.values():
        dtypes = {t.dtype for t in group}
        if len(group) == 1 or len(dtypes) > 1:  # torch.save refuses memory of two dtypes
            moved |= {id(t): t.cpu() for t in group}
            continue
        with tensors_behind(group[:1]):  # computed
            whole = memory.tensor_of(cell_of(group[0]).value).cpu().clone()
        for tensor in group:
            shown = memory.shown(tensor, whole).resolve_conj().resolve_neg()
            moved[id(tensor)] = shown.detach().requires_grad_(tensor.requires_grad)
    return moved
