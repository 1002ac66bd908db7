"""Where `init_process_group("xla")` takes the processes from: the job, or what its caller says."""

from collections.abc import Iterator
from typing import Any

from torch.distributed import HashStore, PrefixStore, Store, rendezvous

from xla_dynamo.process_state import kept
from xla_dynamo.runtime.processes.environment import (
    Seat,
    attempt,
    seat_among,
    seat_from_environment,
    tells_all,
)
from xla_dynamo.runtime.processes.job import joined, seat


def meeting(url: str, *args: Any, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Torch's store for "xla://": the job's processes, and the rank and the number of this one.

    They come from the environment that a launcher wrote; without one there is one process.
    """
    here = seat()
    if here.size == 1:
        yield HashStore(), 0, 1
        return
    timeouts = {"timeout": options["timeout"]} if options.get("timeout") is not None else {}
    store, *who = next(rendezvous("env://", here.rank, here.size, **timeouts))
    yield PrefixStore(f"attempt {attempt()}", store), *who


class _Made:
    def __init__(self) -> None:
        self.worlds = 0  # groups of all processes, one after the other


_made = kept(_Made)


def store_of(given: Any) -> Store:
    """The store of a new group, without what a group of the same name has left in it.

    Torch counts the names from the start again after `destroy_process_group`. Where the store lives
    on, as torchrun's does, Gloo would find the addresses of the groups before.

    Args:
        given: torch's `DistributedBackendOptions`.
    """
    if not given.global_ranks_in_group:
        _made.worlds += 1
    return PrefixStore(f"attempt {attempt()}, world {_made.worlds}", given.store)


def told_by_caller(given: Any) -> tuple[Seat, Store] | None:
    """Which process this is, where the caller of `init_process_group` says it and no launcher.

    Args:
        given: torch's `DistributedBackendOptions`.

    Returns:
        The seat, and the store in which all meet; None where the environment has the seat.
    """
    rank, size = given.group_rank, given.group_size
    is_default = not given.global_ranks_in_group
    if joined() is not None or tells_all() or size == 1 or not is_default:
        return None
    known = seat_from_environment()
    if known.size > 1 and (known.rank, known.size) != (rank, size):
        return None  # both say it, and differ: an error
    store = PrefixStore("xla_dynamo seats", given.store)
    return seat_among(store, rank, size), store
