"""Kill processes while they save checkpoints, at each of their calls that touch files.

`python -m tests.spmd.killed_saves FOLDER` prints what was found, as JSON. It is a program of its
own, since its children are forks, and what has used XLA must not fork.
"""

import collections
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
from collections.abc import Callable

import torch

from xla_dynamo import spmd
from xla_dynamo.distributed_checkpoint import CheckpointManager
from xla_dynamo.errors import CheckpointError

MESH = spmd.Mesh(range(4), (4,), ("x",))
CALLS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree", "os.listdir"}
REFUSED = 3


def state(value: float) -> dict:
    """A state dict that is all of one value."""
    weight = spmd.mark_sharding(torch.full((16, 64), value), MESH, ("x", None))
    return {"model": {"weight": weight, "bias": torch.full((5,), value)}, "value": value}


def manager_of(folder: pathlib.Path, **settings: int) -> CheckpointManager:
    """A manager that saves at each step."""
    return CheckpointManager(folder, 1, chkpt_on_preemption=False, **settings)


def in_child(work: Callable[[], object]) -> int:
    """Do something in a fork; returns the signal that ended it, negative, or its exit status."""
    child = os.fork()
    if not child:
        try:
            work()
        except CheckpointError:
            os._exit(REFUSED)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(number: int) -> None:
    """Let this process be killed before its call of that number that touches files."""
    left = number

    def hook(event: str, _: object) -> None:
        nonlocal left
        if event in CALLS:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def die_when_full(limit: int, by_signal: bool) -> None:
    """Let a write beyond so many bytes of a file end this process, or fail as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if by_signal else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def look(folder: pathlib.Path) -> dict[int, float]:
    """The value of each step that can be restored; checks that nothing else is left."""
    manager, found = manager_of(folder), {}
    for step in manager.all_steps():
        loaded = state(-1.0)
        manager.restore(step, loaded)
        value = loaded["value"]
        assert torch.equal(loaded["model"]["weight"], torch.full((16, 64), value))
        assert torch.equal(loaded["model"]["bias"], torch.full((5,), value))
        found[step] = value
    left = {p.name for p in folder.iterdir()} - {".lock", *map(str, found)}
    assert not left, left
    return found


def sweep(folder: pathlib.Path, step: int, prepare: Callable[[int], None], **settings: int) -> dict:
    """Begin with step 1 of value 1, save a step of value 2 and be killed; for each point of death.

    Returns:
        How often each outcome was found, and by what the children ended.
    """
    outcomes: collections.Counter[str] = collections.Counter()
    ends: collections.Counter[int] = collections.Counter()
    for number in range(10_000):
        shutil.rmtree(folder, ignore_errors=True)
        manager_of(folder).save(1, state(1.0))

        def work(number: int = number) -> None:
            prepare(number)
            manager_of(folder, **settings).save(step, state(2.0))

        end = in_child(work)
        ends[end] += 1
        outcomes[str(sorted(look(folder).items()))] += 1
        manager_of(folder).save(9, state(3.0))  # it goes on
        assert look(folder)[9] == 3.0
        if end == 0:
            return {"outcomes": outcomes, "ends": ends}
    raise AssertionError("no child came to its end")


def main(folder: pathlib.Path) -> None:
    """Sweep over all ways."""
    torch.set_num_threads(1)
    # What a killed process has written, the system has: nothing here needs to reach the disk.
    os.fsync = lambda _: None
    found = {
        "new step": sweep(folder, 2, die_at),
        "replaced step": sweep(folder, 1, die_at),
        "oldest removed": sweep(folder, 2, die_at, max_to_keep=1),
        "in a write": sweep(folder, 2, lambda n: die_when_full(900 * n, True)),
        "full disk": sweep(folder, 2, lambda n: die_when_full(900 * n, False)),
        "full disk, threads": sweep(
            folder, 2, lambda n: die_when_full(900 * n, False), num_of_threads=3
        ),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
