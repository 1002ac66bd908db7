"""A training step over 1, 2 and 4 processes: what it takes, beside DDP over Gloo in eager.

`python -m bench.multi_process` trains a small GPT on one batch, whose rows the processes share, by
each of WAYS, each number of processes in a job of its own. A job's first losses must be those of
eager in one process. Each process has one device; where there are as many cores as processes or
fewer, a process keeps to one core, in every way. The bytes that a process sends in a step of one
mesh are read from the optimized HLO (`bench.collective_bytes`), beside what the formula says.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.collective_bytes import collectives
from bench.models.classics import NanoGpt
from bench.timing import positive

# Rows, tokens, vocabulary, width, heads and layers.
SIZES = (16, 128, 2048, 256, 4, 4)
CHECKED = 3  # the first losses
TOLERANCE = 1e-4

Step = Callable[[], torch.Tensor]


def model_and_batch(rank: int, size: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model, without dropout, and the rows of a process."""
    torch.manual_seed(0)
    rows, length, vocabulary, *others = json.loads(os.environ.get("BENCH_SIZES", f"{[*SIZES]}"))
    model = NanoGpt(vocabulary, length, *others).eval()
    tokens = torch.randint(0, vocabulary, (rows, length + 1))
    return model, tokens.chunk(size)[rank].contiguous()


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy of the next tokens."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Plain SGD: what is measured is the model and the exchange."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def gloo(rank: int, size: int) -> tuple[Step, str]:
    """DDP in eager, on the CPU, over Gloo."""
    return _data_parallel("gloo", "cpu", rank, size, lambda: None, lambda model: model)


def gloo_inductor(rank: int, size: int) -> tuple[Step, str]:
    """DDP around a model that Inductor has compiled, over Gloo."""
    return _data_parallel("gloo", "cpu", rank, size, lambda: None, torch.compile)


def ddp(rank: int, size: int) -> tuple[Step, str]:
    """DDP on the device 'xla', each step ended by `sync()`."""
    import xla_dynamo

    return _data_parallel("xla", "xla", rank, size, xla_dynamo.sync, lambda model: model)


def ddp_compiled(rank: int, size: int) -> tuple[Step, str]:
    """DDP around a model that openxla has compiled, on the device 'xla'."""
    import xla_dynamo

    def compiled(model: torch.nn.Module) -> Any:
        return torch.compile(model, backend="openxla")

    return _data_parallel("xla", "xla", rank, size, xla_dynamo.sync, compiled)


def optimizer_step(rank: int, size: int) -> tuple[Step, str]:
    """PyTorch/XLA's loop: `optimizer_step` takes the mean of the gradients, in the same program."""
    import xla_dynamo

    model, tokens = model_and_batch(rank, size)
    device = xla_dynamo.device()
    model, tokens = model.to(device), tokens.to(device)
    optimizer = optimizer_of(model)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        xla_dynamo.optimizer_step(optimizer)
        loss = xla_dynamo.all_reduce("avg", loss.detach())
        xla_dynamo.sync()
        return loss

    return step, ""


def mesh(rank: int, size: int) -> tuple[Step, str]:
    """One partitioned `train_step`: the rows are sharded, parameters are whole in each process."""
    return _meshed(rank, size, lambda p: (None,) * p.dim())


def fully_sharded(rank: int, size: int) -> tuple[Step, str]:
    """The same, with parameters and their state in shards."""
    return _meshed(rank, size, lambda p: ("data", *[None] * (p.dim() - 1)))


WAYS: dict[str, Callable[[int, int], tuple[Step, str]]] = {
    f.__name__: f
    for f in (gloo, gloo_inductor, ddp, ddp_compiled, optimizer_step, mesh, fully_sharded)
}


def _data_parallel(
    backend: str,
    device: str,
    rank: int,
    size: int,
    end: Callable[[], None],
    wrap: Callable[[torch.nn.Module], Any],
) -> tuple[Step, str]:
    torch.distributed.init_process_group(backend)
    model, tokens = model_and_batch(rank, size)
    model, tokens = model.to(device), tokens.to(device)
    parallel = torch.nn.parallel.DistributedDataParallel(wrap(model))
    optimizer = optimizer_of(model)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(parallel, tokens)
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        torch.distributed.all_reduce(loss)
        end()
        return loss / size

    return step, ""


def _meshed(
    rank: int, size: int, spec: Callable[[torch.Tensor], tuple[str | None, ...]]
) -> tuple[Step, str]:
    import xla_dynamo
    from xla_dynamo import spmd

    axis = spmd.get_1d_mesh("data")
    model, tokens = model_and_batch(rank, size)
    model = model.to(xla_dynamo.device())
    for p in model.parameters():
        spmd.mark_sharding(p, axis, spec(p))
    rows = spmd.ShardingSpec(axis, ("data", None), minibatch=True)
    (placed,) = xla_dynamo.MpDeviceLoader([tokens], "xla", input_sharding=rows)
    step = xla_dynamo.train_step(model, loss_of, optimizer_of(model))
    explained = xla_dynamo.explain(step)
    explained(placed)
    (one,) = explained.report.executables
    return lambda: step(placed), one.hlo


def work(way: str, steps: int, place: str) -> None:
    """What each process of a job does: the first one writes what was seen."""
    began = float(os.environ["BENCH_BEGAN"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    if size > 1 and size >= len(cores):
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if not way.startswith("gloo"):
        import xla_dynamo

        xla_dynamo.runtime.initialize_processes()
    # A step of a mesh that was made to be explained has been taken already.
    step, hlo = WAYS[way](rank, size)
    losses = [step().item() for _ in range(CHECKED)]
    first = time.time() - began
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step().item()
        times.append(time.perf_counter() - start)
    if not rank:
        sent = sum(one.sent() for one in collectives(hlo)) if size > 1 and hlo else None
        found = {"losses": losses, "times": times, "until_third_step": first, "sent": sent}
        pathlib.Path(place).write_text(json.dumps({**found, "explained": bool(hlo)}))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def measure(way: str, size: int, steps: int, seconds: float) -> dict[str, Any]:
    """What a job of so many processes has seen; `error` if it failed."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        place = str(pathlib.Path(folder) / "seen")
        shared = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "CPU_NUM_DEVICES": "1",
            "XLA_DYNAMO_CACHE_DIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "BENCH_BEGAN": str(time.time()),
        }
        command = [sys.executable, "-m", "bench.multi_process", "--work", way, str(steps), place]
        started = [
            subprocess.Popen(
                command,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        errors = []
        end = time.monotonic() + seconds
        for process in started:
            try:
                _, written = process.communicate(timeout=max(end - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                written = f"took more than {seconds:.0f} s"
                process.kill()
                process.communicate()
                process.returncode = 1
            if process.returncode:
                errors.append(written[-2000:])
        if errors:
            return {"way": way, "processes": size, "error": errors[0]}
        return {"way": way, "processes": size, **json.loads(pathlib.Path(place).read_text())}


def _losses_alone() -> list[float]:
    model, tokens = model_and_batch(0, 1)
    optimizer = optimizer_of(model)
    losses = []
    for _ in range(CHECKED + 1):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check(record: dict[str, Any], alone: list[float]) -> None:
    """Note an error in a record whose first losses are not those of eager in one process."""
    if "error" in record:
        return
    wanted = alone[1:] if record["explained"] else alone[:CHECKED]
    off = max(abs(a - b) / abs(b) for a, b in zip(record["losses"], wanted, strict=True))
    if not off <= TOLERANCE:
        record["error"] = f"the losses {record['losses']} are not {wanted}"


def formula(way: str, size: int) -> float:
    """The bytes of gradients that a process must send in a step: a ring's all-reduce.

    Fully sharded, the parameters come by an all-gather for the forward and one for the backward at
    most, and the gradients leave by a reduce-scatter, which XLA:CPU writes as an all-reduce.
    """
    model, _ = model_and_batch(0, 1)
    whole = 4 * sum(p.numel() for p in model.parameters())
    passes = 3 if way == "fully_sharded" else 2
    return passes * whole * (size - 1) / size


def main() -> int:
    """Measure, print, and write the lines; the exit status: 1 if a job failed or was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.multi_process",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--processes", type=positive, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=positive, default=15)
    parser.add_argument("--limit", type=float, default=240, help="seconds for a job")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work[0], int(given.work[1]), given.work[2])
        return 0
    alone, records = _losses_alone(), []
    for size in given.processes:
        for way in given.ways:
            record = measure(way, size, given.steps, given.limit)
            check(record, alone)
            records.append(record)
            print(_told(record), file=sys.stderr, flush=True)
            if given.output:
                given.output.write_text("".join(json.dumps(r) + "\n" for r in records))
    Console().print(_table(records, given.ways, given.processes))
    return int(any("error" in record for record in records))


def _told(record: dict[str, Any]) -> str:
    name = f"{record['way']}, {record['processes']} processes"
    if "error" in record:
        return f"{name}: {record['error']}"
    return f"{name}: {1e3 * statistics.median(record['times']):.1f} ms"


def _table(records: list[dict[str, Any]], ways: list[str], sizes: list[int]) -> Table:
    """Milliseconds a step by way and number of processes; what is sent; seconds until step 3."""
    table = Table("way", title="milliseconds a step of all rows")
    for size in sizes:
        table.add_column(f"{size}", justify="right")
    table.add_column("MB sent, by the formula", justify="right")
    table.add_column("s until the third step", justify="right")
    for way in ways:
        of = {r["processes"]: r for r in records if r["way"] == way and "error" not in r}
        row = [f"{1e3 * statistics.median(of[s]['times']):.1f}" if s in of else "-" for s in sizes]
        last = of.get(max(sizes), {})
        sent = last.get("sent")
        mega = "" if sent is None else f"{sent / 1e6:.2f}, {formula(way, max(sizes)) / 1e6:.2f}"
        starts = ", ".join(f"{of[s]['until_third_step']:.0f}" for s in sizes if s in of)
        table.add_row(way, *row, mega, starts)
    return table


if __name__ == "__main__":
    sys.exit(main())
