"""Write tensors of the device to a file as tensors of the CPU."""

from typing import Any

import torch

from xla_dynamo.torch_private import pytree


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """Save data with `torch.save`, with its 'xla' tensors moved to the CPU.

    `torch.load` then gives tensors of the CPU, also where there is no such device. Tensors that
    shared memory on the device do not share it in the file.

    Args:
        data: tensors in lists, tuples and dictionaries of any depth, such as a `state_dict()`.
        file_or_path: where to save it, as for `torch.save`.
        master_only: as in PyTorch/XLA: whether one process saves; there is one.
        global_master: as in PyTorch/XLA: whether that is one for each machine.
    """
    torch.save(pytree.tree_map_only(torch.Tensor, _to_host, data), file_or_path)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu() if tensor.device.type == "xla" else tensor
