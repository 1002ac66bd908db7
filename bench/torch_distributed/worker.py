"""One of the processes that run torch's tests together: it gets the name of a test, and runs it."""

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import pathlib
import sys
import traceback
import unittest
from multiprocessing.connection import Connection
from typing import Any

from bench.torch_distributed.names import rename_in

WHEEL = "torch.testing._internal.distributed.distributed_test"
FAILED = 10  # the exit status by which torch's tests tell it


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process stands, and what it loads.

    Attributes:
        rank: which process this is.
        size: how many there are.
        port: where the first process listens.
        module: the module of the tests.
        folders: folders for `sys.path`, for tests that are not in torch's wheel.
        device: whose tensors the tests are to have, "xla" or "cpu".
        folder: for what the processes write.
    """

    rank: int
    size: int
    port: int
    module: str
    folders: tuple[str, ...]
    device: str
    folder: str


def work(place: Place, pipe: Connection) -> None:
    """Run the tests whose names come through a pipe, until None comes."""
    log = open(pathlib.Path(place.folder) / f"log-{place.rank}", "a")  # noqa: SIM115, to the end
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        module = _loaded(place)
        pipe.send(_tests(module, place))
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
    while (asked := pipe.recv()) is not None:
        pipe.send(_outcome(module, place, *asked))
    os._exit(0)  # a test may have left threads that never end


def _loaded(place: Place) -> Any:
    """The module of the tests, for which torch has the device 'xla' by now."""
    seat = {"RANK": place.rank, "LOCAL_RANK": place.rank}
    seat |= {"WORLD_SIZE": place.size, "LOCAL_WORLD_SIZE": place.size}
    os.environ.update({name: str(value) for name, value in seat.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(place.port))
    os.environ.update(BACKEND="xla", CPU_NUM_DEVICES="1", TEMP_DIR=place.folder)
    os.environ["XLA_DYNAMO_CACHE_DIR"] = f"{place.folder}/cache"  # all compile the same
    sys.argv = sys.argv[:1]  # torch's tests read it
    sys.path[:0] = place.folders

    import torch

    import xla_dynamo

    torch.set_num_threads(1)
    xla_dynamo.runtime.initialize_processes()
    xla_dynamo.device()
    torch.Tensor.xla = torch.nn.Module.xla = _to_device
    rename_in(place.folders, place.device)
    return importlib.import_module(place.module)


def _to_device(moved: Any, device: Any = None, **options: Any) -> Any:
    """What `cuda` is for another device: a tensor or a module there."""
    return moved.to(f"xla:{device}" if isinstance(device, int) else device or "xla", **options)


def _tests(module: Any, place: Place) -> list[tuple[str, str, int]]:
    """The tests that are for several processes: class, name, and the number of processes."""
    from torch.testing._internal import common_distributed as common

    if place.module == WHEEL:
        base = module.DistributedTest._DistTestBase
        name = "TestDistributedSpawn"
        module.TestDistributedSpawn = type(name, (module.TestDistBackend, base), {})
    found = []
    kinds = (common.MultiProcessTestCase, common.MultiProcContinuousTest)
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, kinds):
            names = unittest.defaultTestLoader.getTestCaseNames(kind)
            found += [(kind.__name__, test, _size(kind, test, place.size)) for test in names]
    return found


def _size(kind: type, test: str, largest: int) -> int:
    """How many processes a test is for."""
    try:
        size = int(kind(test).world_size)
    except Exception:
        size = largest
    return size if size > 0 else largest


def _outcome(module: Any, place: Place, kind: str, test: str, file: str) -> tuple[str, str]:
    """What became of a test here: "passed", "skipped" or "failed", and why."""
    tests = getattr(module, kind)
    method = getattr(tests, test)
    for marked in (tests, method):
        if getattr(marked, "__unittest_skip__", False):
            return "skipped", marked.__unittest_skip_why__
    os.environ["TEMP_DIR"] = file + ".folder"
    ours, theirs = multiprocessing.Pipe()
    told = ""
    try:
        _run(module, tests, test, place, file, theirs)
        return "passed", ""
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        if not end.code:
            return "passed", ""
        with contextlib.suppress(EOFError):  # the test has told nothing
            told = str(ours.recv()) if ours.poll() else ""
        return _of_status(end.code, told or traceback.format_exc())
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        _leave_group()


def _run(module: Any, tests: Any, test: str, place: Place, file: str, pipe: Any) -> None:
    """Run a test as torch's own runner does in each of its processes."""
    if hasattr(tests, "_run"):
        if hasattr(module, "Barrier"):
            module.Barrier.barrier_id = 0
        tests._run(place.rank, test, file, pipe)
        return
    size = _size(tests, test, place.size)
    tests.rank, tests.world_size = place.rank, size
    tests._init_pg(place.rank, size, file)
    tests._run_test_given_id(test)


def _of_status(status: Any, told: str) -> tuple[str, str]:
    """What a test's exit status says."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    for skip in TEST_SKIPS.values():
        if skip.exit_code == status:
            return "skipped", skip.message
    return "failed", told


def _leave_group() -> None:
    """Leave nothing of a test to the next one."""
    import torch.distributed as dist

    import xla_dynamo

    if dist.is_initialized():
        dist.destroy_process_group()
    xla_dynamo.sync()
