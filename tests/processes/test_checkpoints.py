"""Checkpoints of one mesh: each process writes its shards, and another number of them loads."""

import json
import os
import pathlib
import signal
import socket
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import xla_dynamo
from tests.processes.faults import fail, kill, stop
from tests.processes.jobs import results_of, run_job
from tests.processes.small_gpt import batches, loss_fn, losses_alone, new_model
from xla_dynamo import runtime, spmd
from xla_dynamo.distributed_checkpoint import (
    CheckpointManager,
    SPMDLoadPlanner,
    SPMDSavePlanner,
    prime_optimizer,
)
from xla_dynamo.errors import CheckpointError

# LLVM is most of the time otherwise; what XLA's partitioner does is the same.
QUICK = {"xla_options": {"xla_backend_optimization_level": 0}}


FAULTS = {f.__name__: f for f in (kill, stop, fail)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def training(mesh):
    """A fully sharded model on the mesh, its optimizer with state, and its step."""
    model = new_model().to(xla_dynamo.device())
    for p in model.parameters():
        spmd.mark_sharding(p, mesh, ("data", *[None] * (p.dim() - 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, optimizer, xla_dynamo.train_step(model, loss_fn, optimizer, options=QUICK)


def train():
    """The losses of the steps that are left after the newest checkpoint, each in a file at once."""
    rank, size = runtime.process_index(), runtime.process_count()
    folder, last = pathlib.Path(os.environ["CHECKPOINTS"]), int(os.environ["LAST"])
    mesh = spmd.get_1d_mesh("data")
    model, optimizer, step = training(mesh)
    manager = CheckpointManager(folder / "steps", save_interval=5)
    state = {"model": model.state_dict(), "note": f"of {size}", "rank": torch.tensor([rank])}
    first = 0
    if steps := manager.all_steps():
        prime_optimizer(optimizer)
        state["optimizer"] = optimizer.state_dict()
        manager.restore(first := max(steps), state)
        optimizer.load_state_dict(state["optimizer"])
        assert state["note"] in ("of 2", "of 4")
        assert state["rank"].item() in range(4)  # of one of those that have saved
    spec = spmd.ShardingSpec(mesh, ("data", None), minibatch=True)
    loader = xla_dynamo.MpDeviceLoader(batches(rank, size), "xla", input_sharding=spec)
    losses = {}
    for number, (tokens, labels) in enumerate(loader):
        if not first <= number < last:
            continue
        if number == int(os.environ.get("MOMENT", -1)) and rank == 1:
            meet_a_fault(folder / "done")
        losses[number] = step(tokens, labels).item()
        with open(folder / f"losses-{rank}", "a") as file:
            file.write(json.dumps([number, losses[number]]) + "\n")
        if number:
            state["optimizer"] = optimizer.state_dict()
            save = getattr(manager, os.environ.get("SAVE", "save"))
            save(number + 1, state, force=number + 1 == last)
    manager.join()
    return losses


def meet_a_fault(done):
    """Meet what the test asks for, once."""
    if not done.exists():
        done.touch()
        FAULTS[os.environ["FAULT"]]()


def files_of(folder):
    return sorted(p.name for p in folder.iterdir())


def losses_in(folder, rank):
    """The losses that a process has written, by step, each of the last time."""
    lines = (folder / f"losses-{rank}").read_text().splitlines()
    return dict(map(json.loads, lines))


def check_restart(folder, processes, devices, fault, moment, save):
    """Train ten steps under torchrun, with a fault that ends the job once; go on in one process."""
    alone = losses_alone()
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--master-port", str(free_port()), "--max-restarts", "1"]
    ended = run_job(
        train,
        processes,
        devices,
        launcher=(sys.executable, *launcher),
        CHECKPOINTS=str(folder),
        LAST="10",
        FAULT=fault,
        MOMENT=str(moment),
        SAVE=save,
    )
    assert ended.status == 0, ended.output[-6000:]
    assert (folder / "done").exists()
    assert f"This is process 0 of {processes}" in ended.output, ended.output[-6000:]
    (first,) = {min(losses) for losses in ended.results}
    # What `save_async` writes may not be there yet.
    assert first in ({5} if moment > 5 and save == "save" else {0, 5})
    assert files_of(folder / "steps") == [".lock", "10", "5"]
    sizes = [
        sum(f.stat().st_size for f in (folder / "steps" / "10").glob(f"__{rank}_*.distcp"))
        for rank in range(processes)
    ]
    assert min(sizes) > 0.8 * sum(sizes) / processes, "each process writes its part"
    (later,) = results_of(train, 1, CHECKPOINTS=str(folder), LAST="20")
    assert sorted(later) == list(range(10, 20))
    for rank in range(processes):
        losses = losses_in(folder, rank) | later
        told = torch.tensor([losses[number] for number in range(20)])
        torch.testing.assert_close(told, alone, rtol=1e-4, atol=0)


def test_a_restart_goes_on_from_the_checkpoint(tmp_path):
    check_restart(tmp_path, 2, 2, "kill", 7, "save")


@pytest.mark.slow
@pytest.mark.parametrize("moment", [1, 4, 6, 8, 9])
@pytest.mark.parametrize("fault", FAULTS)
def test_restarts_of_four_processes(tmp_path, fault, moment):
    check_restart(tmp_path, 4, 2, fault, moment, "save_async")


def ways_to_save():
    """DCP's own functions in a group; what is told of damage; a SIGTERM in one process."""
    folder, rank = pathlib.Path(os.environ["CHECKPOINTS"]), runtime.process_index()
    dist.init_process_group("xla", init_method="xla://")
    count = runtime.global_runtime_device_count()
    rows = spmd.get_1d_mesh("data")
    columns = spmd.Mesh(range(count), (1, count), ("x", "y"))
    elements = torch.arange(8.0 * count).reshape(count, 8)
    told = []

    def marked(values, mesh, spec):
        return spmd.mark_sharding(values.to("xla"), mesh, spec)

    source = {
        "rows": marked(elements, rows, ("data", None)),
        "pending": spmd.mark_sharding(elements.to("xla") * 2, rows, ("data", None)).t(),
        "uneven": marked(torch.arange(count + 1.0), rows, ("data",)),
        "everywhere": marked(elements[0], rows, (None,)),
        "on the host": spmd.mark_sharding(elements * 3, rows, ("data", None)),
        "half": marked(elements.bfloat16(), rows, ("data", None)),
        "plain": torch.ones(3, device="xla"),
        "empty": torch.ones(0, 4),
        "number": 7,
    }
    writer = dcp.FileSystemWriter(folder / "dcp", per_thread_copy_ahead=0)
    dcp.save(source, storage_writer=writer, planner=SPMDSavePlanner())

    def others():
        return {
            "rows": marked(torch.zeros(count, 8), columns, (None, "y")),
            "pending": marked(torch.zeros(8, count), rows, (None, "data")),
            "uneven": marked(torch.zeros(count + 1), columns, ("y",)),
            "everywhere": marked(torch.zeros(8), rows, ("data",)) if 8 % count == 0 else None,
            "on the host": torch.zeros(count, 8),
            "half": marked(torch.zeros(count, 8).bfloat16(), columns, (None, "y")),
            "plain": torch.zeros(3, device="xla"),
            "empty": torch.zeros(0, 4),
            "number": 0,
        }

    target = others()
    dcp.load(target, checkpoint_id=folder / "dcp", planner=SPMDLoadPlanner())
    told.append({k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in target.items()})

    manager = CheckpointManager(folder / "steps", save_interval=10, max_to_keep=2)
    told.append([manager.save(step, source) for step in (0, 3, 10, 20)])
    told.append(manager.all_steps())
    target = others()
    manager.restore(20, target)
    told.append(target["rows"].cpu())
    if rank == 1:
        (file,) = (folder / "steps" / "10").glob("__1_*.distcp")
        data = bytearray(file.read_bytes())
        data[data.index(b"PK") : data.index(b"PK") + 200] = b"x" * 200
        file.write_bytes(data)
    runtime_meets()
    target = others()
    for wrong in (lambda: manager.restore(10, target), lambda: manager.restore(11, target)):
        try:
            wrong()
        except CheckpointError as error:
            told.append(str(error))
    told.append(target["rows"].cpu())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)  # one hears of it, all save
    told.append([manager.reached_preemption(21), manager.save(21, source), manager.all_steps()])
    told.append(manager.save(22, source))
    return told


def runtime_meets():
    xla_dynamo.rendezvous("here")


def test_ways_to_save(tmp_path):
    rows = torch.arange(32.0).reshape(4, 8)
    for told in results_of(ways_to_save, 2, 2, CHECKPOINTS=str(tmp_path)):
        loaded, saved, steps, again, *damage, untouched, preempted, later = told
        assert loaded["rows"].equal(rows)
        assert loaded["pending"].equal(rows.t() * 2)
        assert loaded["uneven"].equal(torch.arange(5.0))
        assert loaded["everywhere"].equal(rows[0])
        assert loaded["on the host"].equal(rows * 3)
        assert loaded["half"].equal(rows.bfloat16())
        assert loaded["plain"].equal(torch.ones(3))
        assert loaded["empty"].shape == (0, 4)
        assert loaded["number"] == 7
        assert saved == [True, False, True, True]
        assert steps == [10, 20]
        assert again.equal(rows)
        damaged, missing = damage
        assert "is damaged in" in damaged
        assert "no complete checkpoint of step 11" in missing
        assert untouched.equal(torch.zeros(4, 8)), "a damaged checkpoint changes no process's"
        assert preempted == [True, True, [20, 21]]
        assert later is False
    whole = {"rows": torch.zeros(4, 8), "number": 0}
    dcp.load(whole, checkpoint_id=tmp_path / "dcp", no_dist=True)  # of which no mesh knows
    assert whole["rows"].equal(rows)
