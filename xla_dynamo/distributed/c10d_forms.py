"""The forms in which torch.distributed gives a process group tensors, options and reductions."""

import datetime
from typing import Any, TypeAlias

import torch
from torch.distributed import ReduceOp, Work

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.torch_private import work_of_future

Tensor: TypeAlias = torch.Tensor

_REDUCTIONS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}


def listed(tensors: Any) -> list[Tensor]:
    """The tensors, of which torch may give one by itself."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def options_of(kind: Any, *given: Any) -> Any:
    """Options from either of torch's forms: as one object, or as a root, a reduction, a timeout."""
    made = kind()
    for one in given:
        if isinstance(one, kind):
            return one
        if isinstance(one, int):
            made.rootRank = one
        elif one is not None and not isinstance(one, datetime.timedelta):
            made.reduceOp = one
    return made


def in_lists(kind: Any, outputs: Any, inputs: Any, *given: Any) -> tuple[Any, Any, Any]:
    """What is filled, what is given, and options; torch's short forms have no list of each."""
    if isinstance(outputs, torch.Tensor) or isinstance(inputs, torch.Tensor):
        outputs, inputs = [outputs], [inputs]
    return outputs, inputs, options_of(kind, *given)


def root_of(opts: Any, size: int) -> int:
    """The rank of the root, in a group of so many.

    Raises:
        ValueError: nobody has that rank.
    """
    if not 0 <= opts.rootRank < size:
        raise ValueError(f"invalid root rank: {opts.rootRank}, in a group of {size} processes")
    return opts.rootRank


def check_gathering(output: Tensor, input: Tensor, size: int) -> None:
    """Check that a tensor has place for the inputs of so many processes.

    Raises:
        TypeError: its dtype is another one.
        ValueError: it has more or fewer elements.
    """
    of_dtypes = "output tensor must have the same type as input tensor"
    of_sizes = "output tensor size must be equal to world_size times input tensor size"
    _check_parts(output, input, size, of_dtypes, of_sizes)


def check_scattering(output: Tensor, input: Tensor, size: int) -> None:
    """Check that a tensor has an output's elements for each of so many processes.

    Raises:
        TypeError: its dtype is another one.
        ValueError: it has more or fewer elements.
    """
    of_dtypes = "input tensor must be the same type as the output tensor"
    of_sizes = "input tensor must be the same size as output size times world size"
    _check_parts(input, output, size, of_dtypes, of_sizes)


def _check_parts(whole: Tensor, part: Tensor, size: int, of_dtypes: str, of_sizes: str) -> None:
    """Check that a tensor consists of so many parts; the texts are torch's."""
    if whole.dtype != part.dtype:
        raise TypeError(f"{of_dtypes}, and they have {whole.dtype} and {part.dtype}")
    if whole.numel() != size * part.numel():
        raise ValueError(f"{of_sizes}, and {whole.numel()} is not {size} x {part.numel()}")


def on_xla(tensors: Any) -> bool:
    """Whether tensors are of the device 'xla', and not of another.

    Raises:
        UnsupportedError: some are, and some are not.
    """
    kinds = {t.device.type for t in tensors}
    if "xla" in kinds and len(kinds) > 1:
        raise UnsupportedError(
            f"a collective has tensors of the devices {sorted(kinds)}: give it one kind"
        )
    return kinds == {"xla"}


def kind_of(op: Any) -> tuple[str, Any]:
    """Our name of a reduction, and the factor of one that multiplies first."""
    for known, name in _REDUCTIONS.items():
        if op == known:
            return name, None
    if "PREMUL_SUM" in repr(op) or op == ReduceOp.RedOpType.PREMUL_SUM:
        return "sum", op.__getstate__()[1]
    raise UnsupportedError(f"torch.distributed's reduction {op} is not among the backend xla's")


def put(target: Tensor, value: Tensor) -> None:
    """Give a tensor the elements of another."""
    with torch.no_grad():
        target.detach().copy_(value)


def done(tensors: Any) -> Work:
    """Work that is done."""
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(list(tensors))
    return work_of_future(future)


def all_done(works: list[Work], tensors: Any) -> Work:
    """Wait for works, of which torch wants one."""
    for work in works:
        if work is not None:
            work.wait()
    return done(tensors)
