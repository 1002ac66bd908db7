"""`torch_xla.launch` and `xmp.spawn`: a process for each device of this host."""

from collections.abc import Callable
from typing import Any

import xla_dynamo
from xla_dynamo import runtime
from xla_dynamo.runtime.processes.job import seat
from xla_dynamo.switches.pytorch_xla import CPU_NUM_DEVICES


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Call `fn(index, *args)` in a process for each device of this host.

    Devices are the GPUs; on CPU as many as CPU_NUM_DEVICES says, and one if it is not set.
    In a process that torchrun has started, the function runs there.

    Args:
        fn: the function; its module must be importable.
        args: what it is called with, behind the number of its process on this host.
        start_method: "spawn", "forkserver" or "fork".
        debug_single_process: run it in this process alone, with one device.

    Raises:
        NotImplementedError: `xr.use_spmd()` was called: one process has every device then.
        OptionError, torch.multiprocessing.ProcessRaisedException: as `xla_dynamo.launch`.
    """
    if runtime.is_spmd():
        raise NotImplementedError(
            "torch_xla.launch is not for SPMD, where one process has every device: call the "
            "function itself, or leave out xr.use_spmd()"
        )
    spawn(fn, args, 1 if debug_single_process else None, start_method=start_method)


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """`launch`, under its older name.

    Args:
        fn: see `launch`.
        args: see `launch`.
        nprocs: how many processes; one for each device unless given.
        join: true: a job is waited for.
        daemon: false.
        start_method: see `launch`.

    Raises:
        OptionError: `join` is false or `daemon` true; or as `xla_dynamo.launch`.
        torch.multiprocessing.ProcessRaisedException: a process failed.
    """
    is_first = seat().size == 1  # as opposed to one that a launcher has started
    if nprocs is None and is_first and runtime.device_type() == "CPU":
        nprocs = CPU_NUM_DEVICES.get()
    with CPU_NUM_DEVICES.replaced("1"):  # the CPU is one device in each process
        xla_dynamo.spawn(fn, args, nprocs, join, daemon, start_method)
