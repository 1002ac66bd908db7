"""Names of `torch_xla.debug.model_comparator`: tensors of two runs, compared."""

import os
import pathlib
import re
import sys
import threading
from typing import Any, TypeAlias

import torch

import xla_dynamo
from xla_dynamo.process_state import kept
from xla_dynamo.switches.pytorch_xla import MODELCMP_SAVEDIR

Path: TypeAlias = str | os.PathLike[str]
_FILE = re.compile(r"(.*)\.(\d+)")
_STEP = re.compile(r"step-(\d+)")


class _Saving:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.folder: Path | None = None
        self.step: int | None = None
        self.counts: dict[str, int] = {}


_saving = kept(_Saving)


def configure(save_dir: Path | None) -> None:
    """Set the folder that `save` writes to; None for that of MODELCMP_SAVEDIR, if it is set."""
    with _saving.lock:
        _saving.folder, _saving.step, _saving.counts = save_dir, None, {}


def save(name: str | None, tensor: torch.Tensor, step: int | None = None) -> torch.Tensor:
    """Save a tensor for a later comparison, if a folder is set; returns it.

    Args:
        name: its name; None for the file and line of the caller. Several of one name are numbered.
        tensor: the tensor. All processes of a job call this; the first one of a host writes.
        step: the step of training, which has a folder of its own.
    """
    folder = MODELCMP_SAVEDIR.get() or None if _saving.folder is None else _saving.folder
    if folder is None:
        return tensor
    if name is None:
        caller = sys._getframe(1)
        name = f"{os.path.basename(caller.f_code.co_filename)}.l{caller.f_lineno}"
    elements = tensor.detach().cpu()
    if not xla_dynamo.is_master_ordinal():
        return tensor
    with _saving.lock:
        if step is not None and step != _saving.step:
            _saving.step, _saving.counts = step, {}
        number = _saving.counts.get(name, 0)
        _saving.counts[name] = number + 1
    into = pathlib.Path(folder) if step is None else pathlib.Path(folder, f"step-{step}")
    into.mkdir(parents=True, exist_ok=True)
    torch.save(elements, into / f"{name}.{number}")
    return tensor


def compare_tensors(
    tensor1: torch.Tensor,
    tensor2: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """The elements in which two tensors differ, a line each, the largest differences first.

    Elements differ by more than `atol` and by more than `rtol` times the larger of the two, or one
    of them alone is NaN.

    Args:
        tensor1: a tensor.
        tensor2: one of the same shape, or its shape is what is told.
        rtol: the difference that is allowed, in relation to the elements.
        atol: the difference that is allowed whatever the elements are.
        max_diffs: how many elements are told.
    """
    if tensor1.shape != tensor2.shape:
        shapes = f"{list(tensor1.shape)} vs. {list(tensor2.shape)}"
        return f"Tensors have different shape: {shapes}\n"
    one, other = _flat(tensor1), _flat(tensor2)
    error = (one - other).abs()
    error[one == other] = 0  # infinities
    is_nan = one.isnan(), other.isnan()
    error[is_nan[0] & is_nan[1]] = 0
    error[is_nan[0] ^ is_nan[1]] = torch.inf
    allowed = torch.maximum(one.abs(), other.abs()) * rtol
    allowed[~allowed.isfinite()] = 0
    differ = (error > allowed.clamp(min=atol)).nonzero().flatten()
    differ = differ[error[differ].argsort(descending=True, stable=True)]
    values1, values2 = tensor1.detach().flatten(), tensor2.detach().flatten()
    lines = []
    for place in differ[:max_diffs]:
        index = [int(i) for i in torch.unravel_index(place, tensor1.shape)]
        pair = f"{values1[place].item()} vs. {values2[place].item()}"
        lines.append(f"{index}: {pair}\terror={error[place].item()}\n")
    if len(differ) > max_diffs:
        lines.append(f"... aborting after {max_diffs} differences\n")
    return "".join(lines)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    elements = tensor.detach().cpu().flatten()
    return elements.to(torch.complex128 if elements.is_complex() else torch.float64)


def tensor_file_compare(
    path1: Path, path2: Path, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str:
    """What `compare_tensors` tells of the tensors in two files, under their name; "" for nothing.

    Raises:
        FileNotFoundError: one of them is not there.
        ValueError: the first is none of `save`.
    """
    found = compare_tensors(torch.load(path1), torch.load(path2), rtol, atol, max_diffs)
    if not found:
        return ""
    path = pathlib.Path(path1)
    parts = _FILE.fullmatch(path.name)
    if parts is None:
        raise ValueError(f"{path1} is no file of save(): its name does not end in a number")
    step = _STEP.fullmatch(path.parent.name)
    where = f" at step={step[1]}" if step else ""
    told = [f'Changes in saved tensor "{parts[1]}" with id={parts[2]}{where}']
    return "\n".join([*told, *(f"  {line}" for line in found.splitlines())]) + "\n"


def compare(
    save_dir1: Path,
    save_dir2: Path,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """What differs between two folders of saved tensors: files, and elements; "" for nothing."""
    files1, files2 = _files(save_dir1), _files(save_dir2)
    told: list[Any] = [f"Mismatch: {p} not in {save_dir2}\n" for p in files1 if p not in files2]
    for path in files1:
        if path in files2:
            one, other = pathlib.Path(save_dir1, path), pathlib.Path(save_dir2, path)
            told.append(tensor_file_compare(one, other, rtol, atol, max_diffs))
    told += [f"Mismatch: {p} not in {save_dir1}\n" for p in files2 if p not in files1]
    return "".join(told)


def _files(folder: Path) -> list[str]:
    """The files of a folder, and of its steps, that `save` wrote."""
    root = pathlib.Path(folder)
    found = [p for p in root.rglob("*") if p.is_file() and _FILE.fullmatch(p.name)]
    return sorted(str(p.relative_to(root)) for p in found)
