"""Start the processes of a job on this host, each with a function to run: `launch`."""

import time
from collections.abc import Callable
from typing import Any

import torch.distributed
import torch.multiprocessing

from xla_dynamo.errors import OptionError, ProcessError
from xla_dynamo.runtime.clients import has_clients
from xla_dynamo.runtime.processes.job import seat
from xla_dynamo.runtime.topology import initialize_processes
from xla_dynamo.switches import others, warn_of_unknown
from xla_dynamo.switches.pytorch_xla import PJRT_DEVICE

_LATER = 2.0  # seconds
_METHODS = ("spawn", "forkserver", "fork")


def launch(
    fn: Callable[..., None],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    start_method: str = "spawn",
    *,
    patience: float | None = None,
) -> None:
    """Run a function in every process of a job: `fn(index, *args)`.

    In a process that a launcher has started (torchrun, Slurm), the processes are there already:
    this one joins them, and runs the function.

    Args:
        fn: the function; its module must be importable, since the processes look it up by name.
        args: what it is called with, behind the number of its process on this host.
        nprocs: how many processes: 1 unless given, so that CPU_NUM_DEVICES says over how many
            devices a mesh goes; on GPUs as many as there are.
        start_method: "spawn", "forkserver" or "fork", as in `torch.multiprocessing`.
        patience: see `runtime.initialize_processes`.

    Raises:
        OptionError: an argument is none of these, or XLA was used here before, which a process
            that is forked cannot use again.
        torch.multiprocessing.ProcessRaisedException, ProcessExitedException: a process failed; its
            traceback is in the message, and the others were ended.
    """
    here = seat()
    if here.size > 1:
        _check_count(nprocs, here.local_size)
        _begin(patience)
        fn(here.local_rank, *args)
        return
    count = _default_count() if nprocs is None else nprocs
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise OptionError(f"nprocs is a number of processes, 1 or more, and not {nprocs!r}")
    if start_method not in _METHODS:
        raise OptionError(f"start_method is one of {', '.join(_METHODS)}, not {start_method!r}")
    if count == 1:
        _begin(patience)
        fn(0, *args)
        return
    if start_method == "fork" and has_clients():
        raise OptionError(
            "this process has used XLA, whose threads a fork does not copy: launch with "
            "start_method='spawn', or before anything is compiled"
        )
    warn_of_unknown()  # for the processes, which do not
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    given = (fn, args, count, store.port, patience)
    torch.multiprocessing.start_processes(_run, given, count, start_method=start_method)


def spawn(
    fn: Callable[..., None],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """`launch`, under the name and with the signature of PyTorch/XLA's `xmp.spawn`.

    Raises:
        OptionError: `join` is false or `daemon` true, which a job cannot be; or as `launch`.
    """
    if not join or daemon:
        raise OptionError(
            "spawn(join=False) and daemon=True are not there: a job that nobody waits for could "
            "not tell that one of its processes has failed; start a thread or a process for it"
        )
    launch(fn, args, nprocs, start_method)


def _run(
    index: int,
    fn: Callable[..., None],
    args: tuple[Any, ...],
    count: int,
    port: int,
    patience: float | None,
) -> None:
    for number in (others.RANK, others.LOCAL_RANK):
        number.put(str(index))
    for size in (others.WORLD_SIZE, others.LOCAL_WORLD_SIZE):
        size.put(str(count))
    others.MASTER_ADDR.put("127.0.0.1")
    others.MASTER_PORT.put(str(port))
    # The store at the port is the launcher's, as torchrun's agent has it.
    others.AGENT_STORE.put("True")
    others.RESTARTS.put("0")
    _begin(patience)
    try:
        fn(index, *args)
    except ProcessError:
        time.sleep(_LATER)  # the launcher is to see first what the process named in it raised
        raise


def _begin(patience: float | None) -> None:
    """Join the other processes, and make the device 'xla' known to torch, as functions expect."""
    from xla_dynamo.lazy import registration  # claims torch's place, so not before it is asked for

    initialize_processes(patience)
    registration.device()


def _check_count(nprocs: int | None, there: int) -> None:
    if nprocs is not None and nprocs != there:
        raise OptionError(
            f"launch(nprocs={nprocs}) in a process that a launcher has started, of {there} on this "
            "host: leave nprocs out"
        )


def _default_count() -> int:
    is_on_gpus = (PJRT_DEVICE.get() or "cuda").lower() == "cuda"
    return max(torch.cuda.device_count(), 1) if is_on_gpus else 1
