"""The arguments of a wrapper: which processes share its parameters, and policies of two forms."""

import inspect
from collections.abc import Callable

import torch

from xla_dynamo.distributed.collectives import Groups, ranks_of
from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.processes.job import joined, seat


def own_group(groups: Groups | None, rank: int | None, size: int | None) -> tuple[int, int]:
    """The index of this process in its group, and the group's size.

    Args:
        groups: groups of ranks, or None for all of them in one.
        rank: the index that was given, if any.
        size: the size that was given, if any.

    Raises:
        ShardingError: the numbers that were given are others, or the processes have not met yet.
    """
    if joined() is None and seat().size > 1:
        raise ShardingError(
            f"this is one of {seat().size} processes, which have not joined yet: make the model in "
            "the function that xla_dynamo.launch calls, or after init_process_group('xla')"
        )
    ranks, count = ranks_of(groups)
    own = ranks.index(seat().rank) % count
    for name, given, known in (("sharding_rank", rank, own), ("sharding_world_size", size, count)):
        if given is not None and given != known:
            raise ShardingError(f"{name} is {given}, and by the groups it is {known} here")
    return own, count


def of_torch(policy: Callable[..., bool]) -> Callable[..., bool]:
    """Make a policy of PyTorch/XLA's form one of `torch.distributed.fsdp.wrap`.

    PyTorch/XLA calls the number of parameters `unwrapped_params`. Others stay as they are.
    """
    if "unwrapped_params" not in inspect.signature(policy).parameters:
        return policy

    def named(module: torch.nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return policy(module=module, recurse=recurse, unwrapped_params=nonwrapped_numel)

    return named
