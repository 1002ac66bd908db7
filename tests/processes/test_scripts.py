"""Scripts as others write them for accelerators, in several processes on the device 'xla'."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest
import torch

from tests.processes.scripts import fsdp2, toy

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = pathlib.Path(__file__).parent / "scripts"
SECONDS = 240
IN_TWO_AND_FOUR = pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])


def torchrun(processes):
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]


def run_script(folder, name, *arguments, launcher=(), processes=2, **environment):
    """What each process of a script has handed over, by rank."""
    place = folder / "handed"
    place.mkdir(exist_ok=True)
    ended = subprocess.run(
        [sys.executable, *launcher, str(SCRIPTS / name), str(place), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "CPU_NUM_DEVICES": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "XLA_DYNAMO_CACHE_DIR": str(folder / "cache"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(processes)]


def assert_mean(losses, alone):
    """The mean of the processes' losses is the loss of one process, in every step."""
    mean = torch.tensor(losses).mean(0)
    torch.testing.assert_close(mean, torch.tensor(alone), rtol=1e-4, atol=0)


@IN_TWO_AND_FOUR
def test_ddp_tutorial_under_torchrun(tmp_path, processes):
    found = run_script(
        tmp_path, "elastic_ddp.py", launcher=torchrun(processes), processes=processes
    )
    for name in found[0]["losses"]:
        head = {"head": toy.head_of} if name == "unused" else {}
        losses = [each["losses"][name] for each in found]
        assert_mean(losses, toy.losses_alone(size=processes, **head))
    assert [each["later programs"] for each in found] == [0] * processes


@pytest.mark.parametrize(
    ("demo", "processes"),
    [
        ("demo_checkpoint", 2),
        pytest.param("demo_basic", 2, marks=pytest.mark.slow),
        pytest.param("demo_checkpoint", 4, marks=pytest.mark.slow),
    ],
)
def test_ddp_tutorial_without_a_launcher(tmp_path, demo, processes):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    found = run_script(tmp_path, "ddp_tutorial.py", demo, str(processes), port, processes=processes)
    assert_mean(found, toy.losses_alone(size=processes))


@pytest.mark.every(2)
@IN_TWO_AND_FOUR
def test_fsdp2_example(tmp_path, processes):
    """A part of a model in each process, and a state that is whole in one file."""
    found = run_script(tmp_path, "fsdp2.py", launcher=torchrun(processes), processes=processes)
    assert_mean(found, fsdp2.losses_alone(tmp_path / "handed", False, processes))


@pytest.mark.slow
@pytest.mark.parametrize("api", [(), ("--dcp-api",)], ids=["DTensor", "dcp"])
def test_fsdp2_example_that_goes_on(tmp_path, api):
    for continued in (False, True):
        found = run_script(
            tmp_path, "fsdp2.py", "--explicit-prefetching", *api, launcher=torchrun(2)
        )
        alone = fsdp2.losses_alone(tmp_path / "handed", continued, 2)
        assert_mean(found, alone)


@pytest.mark.slow
def test_fsdp2_example_in_bfloat16(tmp_path):
    found = run_script(tmp_path, "fsdp2.py", "--mixed-precision", launcher=torchrun(2))
    alone = fsdp2.losses_alone(tmp_path / "handed", False, 2)
    mean = torch.tensor(found).mean(0)
    torch.testing.assert_close(mean, torch.tensor(alone), rtol=0.02, atol=1)


@pytest.mark.every(2)
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_libraries_over_two_processes(tmp_path, library):
    found = run_script(tmp_path, f"{library}_training.py", launcher=torchrun(2))
    assert_mean(found, toy.losses_alone())
