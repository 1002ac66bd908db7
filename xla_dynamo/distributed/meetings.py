"""`init_process_group("xla", init_method="xla://")`: the processes are those of the job."""

from collections.abc import Iterator
from typing import Any

from torch.distributed import HashStore, PrefixStore, Store, rendezvous

from xla_dynamo.runtime.processes.environment import attempt
from xla_dynamo.runtime.processes.job import seat


def meeting(url: str, *args: Any, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Torch's store for the job's processes, and the rank and the number of this one.

    They come from the environment that a launcher wrote; without one there is one process.
    """
    here = seat()
    if here.size == 1:
        yield HashStore(), 0, 1
        return
    timeouts = {"timeout": options["timeout"]} if options.get("timeout") is not None else {}
    store, *who = next(rendezvous("env://", here.rank, here.size, **timeouts))
    yield PrefixStore(f"attempt {attempt()}", store), *who
