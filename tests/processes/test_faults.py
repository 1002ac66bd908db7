"""A process that dies, stops, fails, leaves or goes another way: the others say which, and soon."""

import os
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

import xla_dynamo as xm
from tests.processes.faults import fail, kill, stop
from tests.processes.jobs import results_of, run_apart, run_job
from xla_dynamo import runtime, spmd


def leave():
    pass


def differ():
    xm.all_reduce("sum", torch.ones(3, device="xla") + 1).cpu()


def come_late():
    time.sleep(10)


FAULTS = {f.__name__: f for f in (kill, stop, fail, leave, differ, come_late)}


def meet_a_fault():
    """What a process is told, and in how many seconds, when the second of three does something."""
    runtime.initialize_processes(patience=3)
    x = torch.arange(4.0, device="xla")
    moment = int(os.environ["MOMENT"])
    for step in range(moment + 2):
        if step == moment and runtime.process_index() == 1:
            FAULTS[os.environ["FAULT"]]()
            return None
        start = time.monotonic()
        try:
            x = xm.all_reduce("max", x)
            xm.sync()
        except xm.ProcessError as error:
            again = ""
            try:
                xm.all_reduce("sum", torch.ones(2, device="xla")).cpu()
            except xm.ProcessError as second:
                again = str(second)
            own = (torch.ones(2, device="xla") * 2).sum().item()  # what is its own still runs
            return str(error), again, own, time.monotonic() - start
    return None


MESSAGES = {
    "kill": "process 1 was killed, or has crashed",
    "stop": "process 1 has not been heard of for 30 s",
    "fail": "process 1 has ended",
    "leave": "process 1 has ended",
    "differ": "process 1",
    "come_late": "process 1 has not come to the program",
}


def check(fault, moment):
    results, written = run_apart(meet_a_fault, 3, FAULT=fault, MOMENT=str(moment))
    for rank in (0, 2):
        assert results[rank] is not None, written[-4000:]
        message, again, own, seconds = results[rank]
        assert MESSAGES[fault] in message
        assert f"This is process {rank} of 3" in message
        assert MESSAGES[fault] in again
        assert own == 4
        assert seconds < 50


@pytest.mark.parametrize("fault", ["kill", "differ", "come_late"])
def test_one_of_three(fault):
    check(fault, 2)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0, 1, 7, 30])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_at_each_moment(fault, moment):
    check(fault, moment)


def run_into_a_fault():
    """Many collectives of a large tensor, in the midst of which the second process is lost."""
    if runtime.process_index() == 1:
        lost = threading.Timer(float(os.environ["SECONDS"]), FAULTS[os.environ["FAULT"]])
        lost.start()
    x = torch.ones(4_000_000, device="xla")
    while True:
        try:
            x = xm.all_reduce("max", x)
            xm.sync()
        except xm.ProcessError as error:
            return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1.1, 1.7, 2.3, 2.9])
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_in_the_midst_of_a_collective(fault, seconds):
    start = time.monotonic()
    results, written = run_apart(run_into_a_fault, 3, FAULT=fault, SECONDS=str(seconds))
    told = written + "".join(results[rank] or "" for rank in (0, 2))
    for rank in (0, 2):
        assert f"This is process {rank} of 3" in told, written[-4000:]
    assert told.count("process 1 was killed" if fault == "kill" else "process 1 ") >= 2
    assert time.monotonic() - start < 90  # start-up included


# --- mistakes ------------------------------------------------------------------------------------


def say_nothing():
    return runtime.world_size()


def test_an_error_ends_the_job():
    ended = run_job(raise_in_the_last, 2)
    assert ended.status != 0
    assert "this one fails" in ended.output


def raise_in_the_last():
    if runtime.process_index() == 1:
        fail()
    xm.rendezvous("never")


def draw_random_numbers():
    """Dropout over one mesh, compiled and lazily: of one seed, and of another in each process."""
    mesh = spmd.get_1d_mesh("data")
    run = torch.compile(lambda x: torch.dropout(x, 0.5, True), backend="openxla")
    told = []
    for seed in (3, 3 + runtime.process_index()):
        torch.manual_seed(seed)
        x = spmd.mark_sharding(torch.ones(64), mesh, ("data",))
        there = spmd.mark_sharding(torch.ones(64, device="xla"), mesh, ("data",))
        for call in (run, lambda x: torch.dropout(x, 0.5, True).cpu()):
            try:
                told.append(call(x if call is run else there))
            except xm.ProcessError as error:
                told.append(str(error))
    return told


def test_seeds_of_one_mesh():
    told = results_of(draw_random_numbers, 2)
    for compiled, lazy, *refused in told:
        assert compiled.equal(told[0][0])
        assert lazy.equal(told[0][1])
        assert 0 < compiled.sum() < 128
        assert 0 < lazy.sum() < 128
        for message in refused:
            assert "process 0 and process 1 differ in the seed of random numbers" in message


def refusals():
    """What jobs refuse, each in its place."""
    found = []
    for call in (
        lambda: xm.launch(say_nothing, nprocs=0),
        lambda: xm.launch(say_nothing, nprocs=2, start_method="thread"),
        lambda: xm.spawn(say_nothing, nprocs=2, join=False),
    ):
        try:
            call()
        except xm.OptionError as error:
            found.append(str(error))
    os.environ.update(RANK="1", WORLD_SIZE="2")
    torch.ones(2, device="xla").sum().item()
    try:
        runtime.initialize_processes()
    except xm.OptionError as error:
        found.append(str(error))
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    return found


def test_refusals():
    (found,) = results_of(refusals, 1)
    assert "nprocs is a number of processes" in found[0]
    assert "start_method is one of" in found[1]
    assert "spawn(join=False)" in found[2]
    assert "process 1 of 2 has used XLA by itself already" in found[3]


def in_torchrun():
    """A job that torchrun has launched: who is who, and a sum."""
    dist.init_process_group("xla")  # env://
    t = torch.ones(2, device="xla") * dist.get_rank()
    dist.all_reduce(t)
    made = runtime.global_ordinal(), runtime.local_process_count(), t.cpu().tolist()
    dist.destroy_process_group()
    return made


def test_torchrun():
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ended = run_job(in_torchrun, 2, launcher=(sys.executable, *torchrun))
    assert ended.status == 0, ended.output[-4000:]
    assert ended.results == [(0, 2, [1.0, 1.0]), (1, 2, [1.0, 1.0])]
