"""Who is who among the processes, and what they tell one another beside programs."""

import pickle
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from xla_dynamo.distributed.collectives import Groups, all_reduce, collective_broadcast
from xla_dynamo.lazy import steps
from xla_dynamo.runtime.processes.job import joined, seat
from xla_dynamo.torch_private import pytree


def get_ordinal() -> int:
    """The rank of this process: `runtime.global_ordinal()` under PyTorch/XLA's older name."""
    return seat().rank


def get_local_ordinal() -> int:
    """The number of this process among those of its host."""
    return seat().local_rank


def xrt_world_size() -> int:
    """The number of processes: `runtime.world_size()` under PyTorch/XLA's older name."""
    return seat().size


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this process is the one that logs and saves: the first.

    Args:
        local: among the processes of this host, or of all.
    """
    return (seat().local_rank if local else seat().rank) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print in the first process: of all, or with `local` of each host. `fd` is a file."""
    if is_master_ordinal(local):
        print(*args, file=sys.stdout if fd is None else fd, flush=flush)


def do_on_ordinals(
    target: Callable[..., Any], data: Sequence[Any] = (), ordinals: Collection[int] = (0,)
) -> Any:
    """Call `target(*data)` in the processes of these ranks; the others return None.

    Tensors of the device 'xla' among the data arrive as tensors of the CPU. All processes call
    this, since they compute them together.
    """
    given = pytree.tree_map_only(
        torch.Tensor, lambda t: t.cpu() if t.device.type == "xla" else t, list(data)
    )
    return target(*given) if seat().rank in ordinals else None


def rendezvous(tag: str, payload: bytes | str = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until all processes have come here; returns what each has brought, by rank.

    Args:
        tag: the name of the place, the same in all.
        payload: what this process brings.
        replicas: the ranks that come, in order; all of them unless given.

    Raises:
        ProcessError: one is gone, or late, or has come to something else.
    """
    content = payload.encode() if isinstance(payload, str) else bytes(payload)
    here = joined()
    if here is None:
        return [content]
    return here.gather(f"the rendezvous {tag!r}", content, b"", tuple(sorted(replicas)))


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the list of what all processes have brought, in each process.

    Args:
        tag: as for `rendezvous`.
        data: anything that pickles; tensors of the device 'xla' arrive as tensors of the CPU.
        reduce_fn: takes the list.
    """
    on_host = pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().cpu() if t.device.type == "xla" else t, data
    )
    brought = rendezvous(tag, pickle.dumps(on_host))
    return reduce_fn([pickle.loads(one) for one in brought])


def reduce_gradients(
    optimizer: torch.optim.Optimizer,
    groups: Groups | None = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> None:
    """Let the gradients of an optimizer's parameters be the mean of those of all processes.

    Args:
        optimizer: the optimizer.
        groups: as for `all_reduce`.
        cctx: as for `all_reduce`.
        pin_layout: as for `all_reduce`.
    """
    count = seat().size if groups is None else len(groups[0])
    if joined() is None or count == 1:
        return
    gradients = [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    all_reduce("sum", gradients, 1.0 / count, groups)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Groups | None = None,
    pin_layout: bool = True,
) -> Any:
    """Take the mean of all processes' gradients, and call `optimizer.step()`.

    Args:
        optimizer: the optimizer.
        barrier: whether the step ends here, as at `sync()`; a loader of the device ends it, too.
        optimizer_args: what `optimizer.step()` is called with, by keyword.
        groups: as for `all_reduce`.
        pin_layout: as for `all_reduce`.

    Returns:
        What `optimizer.step()` returned.
    """
    reduce_gradients(optimizer, groups)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        steps.sync()
    return result


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give the parameters and buffers of all processes the values of the first one."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    steps.sync()
