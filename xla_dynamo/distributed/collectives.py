"""What processes exchange, under PyTorch/XLA's names and with its signatures (`xla_model`).

On tensors of the device 'xla' a collective is recorded like any operator, and inside
`torch.compile` it is a node of the graph: either way it is part of the executable around it. All
processes must come to the same program; one that comes to another is told so.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.processes.job import joined
from xla_dynamo.spmd import collective_operators

assert collective_operators

Tensor: TypeAlias = torch.Tensor
# Groups of ranks, of one size, each process in one.
Groups: TypeAlias = Sequence[Sequence[int]]

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR = "sum", "mul", "and", "or"
REDUCE_MIN, REDUCE_MAX = "min", "max"
ALL_REDUCES = (REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX)
_REDUCTIONS = {"mul": "product", "and": "band", "or": "bor", "xor": "bxor"}


@torch.compiler.assume_constant_result
def _everyone() -> list[int]:
    """The ranks of all processes; of one that has not joined others, its own."""
    here = joined()
    return [0] if here is None else list(range(here.seat.size))


def ranks_of(groups: Groups | None) -> tuple[list[int], int]:
    """The ranks of one group after another, and the size of a group."""
    if groups is None or len(groups) == 0:
        everyone = _everyone()
        return everyone, len(everyone)
    ranks = [rank for group in groups for rank in group]
    size = len(groups[0])
    if any(len(group) != size for group in groups) or sorted(ranks) != _everyone():
        raise ShardingError(
            f"groups={[list(group) for group in groups]}: they are of one size, with each of the "
            f"{len(_everyone())} processes in one"
        )
    return ranks, size


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Groups | None = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce tensors over processes; all of a group get the result.

    Args:
        reduce_type: "sum", "mul", "and", "or", "min" or "max"; also "avg", "xor" and torch's names.
        inputs: a tensor, of any floating, integer, complex or boolean dtype that has the reduction;
            or a list, each of which is changed in place.
        scale: what results are multiplied by.
        groups: groups of ranks, of one size, each process in one; all of them in one unless given.
        cctx: as in PyTorch/XLA, without effect: XLA orders collectives by itself.
        pin_layout: likewise.

    Returns:
        A new tensor of the input's shape and dtype; None for a list.

    Raises:
        ShardingError: groups are none of these, or the dtype has no such reduction.
        ProcessError: where the result is computed: another process is gone or late, or has come to
            another program.
    """
    kind, group = _REDUCTIONS.get(reduce_type, reduce_type), ranks_of(groups)
    if isinstance(inputs, torch.Tensor):
        return _scaled(_reduced(inputs, kind, group), scale)
    with torch.no_grad():
        for one in inputs:
            one.copy_(_scaled(_reduced(one, kind, group), scale))
    return None


def _reduced(x: Tensor, kind: str, group: tuple[list[int], int]) -> Tensor:
    return x.clone() if group[1] == 1 else torch.ops.xla.all_reduce(x, kind, *group)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale


def all_gather(
    value: Any,
    dim: int = 0,
    groups: Groups | None = None,
    output: Any = None,
    pin_layout: bool = True,
) -> Any:
    """The tensors of a group's processes, one behind the other along `dim`.

    Args:
        value: a tensor, of one shape in all processes, or a list of them.
        dim: the dimension, from -rank to rank - 1.
        groups: as for `all_reduce`.
        output: a tensor, or a list, that takes the result.
        pin_layout: as for `all_reduce`.

    Returns:
        A tensor whose size in `dim` is as many times larger as a group has processes, or a list; or
        `output`.

    Raises:
        ShardingError, ProcessError: as `all_reduce`; or there is no such dimension.
    """
    group = ranks_of(groups)

    def gathered(x: Tensor) -> Tensor:
        return x.clone() if group[1] == 1 else torch.ops.xla.all_gather(x, _dim(x, dim), *group)

    return _mapped(gathered, value, output)


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups | None = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Reduce the tensors of a group's processes; each gets its part of the result.

    Args:
        reduce_type: as for `all_reduce`.
        input: a tensor or a list, whose size in `scatter_dim` is divisible by `shard_count`.
        scale: what results are multiplied by.
        scatter_dim: the dimension along which the result is split.
        shard_count: the size of a group.
        groups: as for `all_reduce`.
        output: a tensor, or a list, that takes the result.
        pin_layout: as in PyTorch/XLA, without effect.
        channel_id: likewise.
        use_global_device_ids: likewise.

    Raises:
        ShardingError, ProcessError: as `all_reduce`; or `shard_count` is not the size of a group.
    """
    kind, group = _REDUCTIONS.get(reduce_type, reduce_type), ranks_of(groups)
    _check_count("shard_count", shard_count, group[1])

    def part(x: Tensor) -> Tensor:
        dim = _dim(x, scatter_dim)
        whole = x.clone() if group[1] == 1 else torch.ops.xla.reduce_scatter(x, kind, dim, *group)
        return _scaled(whole, scale)

    return _mapped(part, input, output)


def all_to_all(
    value: Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups | None = None,
    pin_layout: bool = True,
) -> Tensor:
    """Send each process of a group a part of a tensor; what it gets it puts behind each other.

    Args:
        value: a tensor, whose size in `split_dimension` is divisible by `split_count`.
        split_dimension: the dimension along which it is split.
        concat_dimension: the dimension along which the parts are put.
        split_count: the size of a group.
        groups: as for `all_reduce`.
        pin_layout: as for `all_reduce`.

    Raises:
        ShardingError, ProcessError: as `all_reduce`; or `split_count` is not the size of a group.
    """
    group = ranks_of(groups)
    _check_count("split_count", split_count, group[1])
    if group[1] == 1:
        return value.clone()
    dims = _dim(value, split_dimension), _dim(value, concat_dimension)
    return torch.ops.xla.all_to_all(value, *dims, *group)


def collective_permute(value: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
    """Send a tensor from processes to others; those that get nothing have zeros.

    Args:
        value: a tensor, of one shape in all processes.
        pairs: from which rank and to which, each once.

    Raises:
        ShardingError: a rank is none, or sends or gets twice.
        ProcessError: as `all_reduce`.
    """
    everyone = _everyone()
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for ranks in (sources, targets):
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(everyone):
            raise ShardingError(
                f"collective_permute takes pairs of ranks, from 0 to {len(everyone) - 1}, in which "
                f"each sends once and gets once at most, and not {[list(p) for p in pairs]}"
            )
    if len(everyone) == 1:
        return value.clone() if pairs else torch.zeros_like(value)
    return torch.ops.xla.collective_permute(value, [rank for pair in pairs for rank in pair])


def collective_broadcast(
    tensors: Sequence[Tensor],
    root_ordinal: int = 0,
    groups: Groups | None = None,
    pin_layout: bool = True,
) -> None:
    """Give the tensors of all processes of a group the elements that one of them has, in place.

    Args:
        tensors: of the same shapes and dtypes in all.
        root_ordinal: whose they are: its index in each group.
        groups: as for `all_reduce`.
        pin_layout: as for `all_reduce`.

    Raises:
        ShardingError, ProcessError: as `all_reduce`; or there is no such index.
    """
    ranks, size = ranks_of(groups)
    if not 0 <= root_ordinal < size:
        raise ShardingError(
            f"root_ordinal is the index of a process in its group, from 0 to {size - 1}, and not "
            f"{root_ordinal}"
        )
    if size == 1:
        return
    with torch.no_grad():
        for one in tensors:
            one.copy_(torch.ops.xla.collective_broadcast(one.detach(), root_ordinal, ranks, size))


def _dim(x: Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ShardingError(f"a tensor of {x.dim()} dimensions has none of number {dim}")
    return dim % x.dim()


def _check_count(name: str, given: int, size: int) -> None:
    if given != size:
        raise ShardingError(f"{name} is {given}, and a group has {size} processes: give that")


def _mapped(f: Callable[[Tensor], Tensor], value: Any, output: Any) -> Any:
    """A function of a tensor or of each of a list, put into outputs if there are any."""
    if isinstance(value, torch.Tensor):
        return f(value) if output is None else _put(output, f(value))
    made = [f(x) for x in value]
    if output is None:
        return made
    for target, one in zip(output, made, strict=True):
        _put(target, one)
    return output


def _put(target: Tensor, made: Tensor) -> Tensor:
    """Fill an output, which takes the result's shape, as PyTorch/XLA's do."""
    if target.shape != made.shape:
        with torch.no_grad():
            target.resize_(made.shape)
    return target.copy_(made)
