"""Names of `torch_xla.utils.serialization`: a file, and beside it a folder with a file a tensor.

A tensor is on the host only while it is written or read, so the host needs memory for one of them.
Files of PyTorch/XLA are read, and it reads these: a reference is pickled under its name there.
"""

import os
import pathlib
import shutil
from typing import Any

import torch

import xla_dynamo
from xla_dynamo.torch_xla.forms.values import for_each_instance, for_each_instance_rewrite


class TensorReference:
    """Stands for a tensor in a saved file.

    Attributes:
        tid: the number of the tensor's file.
    """

    def __init__(self, tid: int) -> None:
        """Take the number of the tensor's file."""
        self.tid = tid


TensorReference.__module__ = "torch_xla.utils.serialization"


def _folder(path: str | os.PathLike[str]) -> pathlib.Path:
    return pathlib.Path(f"{os.fspath(path)}.tensors")


def _file(path: str | os.PathLike[str], reference: TensorReference) -> pathlib.Path:
    return _folder(path) / f"tensor_{reference.tid}.pt"


def _is_of_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def save(
    data: Any,
    path: str | os.PathLike[str],
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """Save data whose 'xla' tensors are written one by one, to files in the folder `path.tensors`.

    All processes of a job call it, since they compute the tensors together. Tensors that share
    memory become tensors that share none.

    Args:
        data: containers and objects of any depth.
        path: the file; one for each process unless `master_only`.
        master_only: whether one process saves; otherwise each does.
        global_master: whether that is one of the job, and not one of each host.
    """
    writes = not master_only or xla_dynamo.is_master_ordinal(local=not global_master)
    found: list[torch.Tensor] = []
    for_each_instance(data, _is_of_device, found.append)
    xla_dynamo.unlazy(found)
    references = {id(tensor): TensorReference(number) for number, tensor in enumerate(found)}
    if writes:
        shutil.rmtree(_folder(path), ignore_errors=True)
        _folder(path).mkdir()
    for tensor in found:
        on_host = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            on_host = torch.nn.Parameter(on_host, tensor.requires_grad)
        if writes:
            torch.save(on_host, _file(path, references[id(tensor)]))
    if writes:
        written = for_each_instance_rewrite(data, _is_of_device, lambda t: references[id(t)])
        torch.save(written, path)


def load(path: str | os.PathLike[str]) -> Any:
    """What `save` was given, with tensors of the CPU.

    The file is unpickled, which runs code that it names: load only files that you trust.

    Raises:
        FileNotFoundError: the file is not there, or one of a tensor.
    """
    data = torch.load(path, weights_only=False)
    return for_each_instance_rewrite(
        data,
        lambda value: isinstance(value, TensorReference),
        lambda reference: torch.load(_file(path, reference), weights_only=False),
    )
