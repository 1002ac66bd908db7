"""Which of how many processes this one is, as launchers write it; and who tells of the others."""

import threading
import time
from multiprocessing import Pipe

import pytest
from torch.distributed import HashStore

from xla_dynamo.errors import OptionError, ProcessError
from xla_dynamo.runtime.processes import coordinator
from xla_dynamo.runtime.processes.environment import (
    Seat,
    seat_among,
    seat_from_environment,
    tells_all,
)
from xla_dynamo.runtime.processes.job import Job

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "seat"),
    [
        ({}, Seat(0, 1, 0, 1)),
        (TORCHRUN, Seat(5, 8, 1, 4)),
        (SLURM, Seat(2, 4, 0, 1)),
        ({**SLURM, **TORCHRUN}, Seat(5, 8, 1, 4)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Seat(0, 1, 0, 1)),
        ({"RANK": "3"}, Seat(0, 1, 0, 1)),
    ],
)
def test_seats(environment, seat):
    assert seat_from_environment(environment) == seat


@pytest.mark.parametrize(
    "changed", [{"RANK": "8"}, {"RANK": "-1"}, {"LOCAL_RANK": "4"}, {"WORLD_SIZE": "two"}]
)
def test_seats_that_are_none(changed):
    with pytest.raises(OptionError, match="RANK"):
        seat_from_environment({**TORCHRUN, **changed})


def test_seats_of_processes_that_no_launcher_has_started(monkeypatch):
    store = HashStore()
    hosts = ["a", "b", "a", "b"]
    for rank, host in enumerate(hosts):
        store.set(f"host of {rank}", host)
    for rank, host in enumerate(hosts):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert seat_among(store, rank, 4) == Seat(rank, 4, rank // 2, 2)


def test_who_tells_all():
    assert tells_all(TORCHRUN)
    assert tells_all(SLURM)
    assert not tells_all({"RANK": "0", "WORLD_SIZE": "2"})


@pytest.fixture
def connections():
    """A coordinator's connections to three processes, which this test plays."""
    judge = coordinator.Coordinator(3, patience=2)
    threading.Thread(target=judge.watch, daemon=True).start()
    found = []
    for rank in range(3):
        ours, theirs = Pipe()
        threading.Thread(target=judge.serve, args=(theirs,), daemon=True).start()
        ours.send((rank, ""))
        found.append(ours)
    return found


def come(connection, about, same=b"", payload=b"", members=(0, 1, 2)):
    connection.send(("exchange", members, about, same, payload))


def answer(connection):
    assert connection.poll(10), "the coordinator must answer"
    return connection.recv()


def test_payloads_come_in_the_order_of_ranks(connections):
    for rank in (2, 0, 1):
        come(connections[rank], "here", payload=b"%d" % rank)
    assert [answer(c) for c in connections] == [("done", [b"0", b"1", b"2"])] * 3
    for rank in (1, 0):  # groups do not wait for others
        come(connections[rank], "there", members=(0, 1))
    assert [answer(c) for c in connections[:2]] == [("done", None)] * 2  # none has sent anything


def test_others_are_told_who_differs(connections):
    come(connections[0], "the program a", b"1")
    come(connections[2], "the program b", b"2")
    kind, why = answer(connections[0])
    assert kind == "failed"
    assert "process 0 has come to the program a, and process 2 to the program b" in why
    come(connections[1], "the program a", b"1")
    assert answer(connections[1]) == ("failed", why)


def test_one_that_leaves_before_or_while_others_wait(connections):
    come(connections[0], "here")
    connections[1].close()
    assert "process 1 was killed, or has crashed" in answer(connections[0])[1]


def test_one_that_has_ended_hinders_nobody_who_does_not_wait(connections):
    connections[1].send(("bye",))
    connections[1].close()
    time.sleep(0.2)
    connections[0].send(("state", False))
    assert answer(connections[0]) == ("state", "")
    connections[0].send(("state", True))
    assert answer(connections[0]) == ("state", "process 1 has ended")
    come(connections[0], "here")
    assert "process 1 has ended" in answer(connections[0])[1]


def test_one_that_is_late(connections):
    come(connections[0], "the program a")
    come(connections[1], "the program a")
    assert "process 2 has not come to the program a in 2 s" in answer(connections[0])[1]


def test_one_that_is_silent(connections, monkeypatch):
    monkeypatch.setattr(coordinator, "SILENCE", 0.5)
    come(connections[0], "here")
    end = time.monotonic() + 8
    while time.monotonic() < end and not connections[0].poll(0.1):
        connections[1].send(("beat",))
    assert "process 1" not in (why := answer(connections[0])[1])
    assert "process 2 has not been heard of" in why


def test_the_error_names_who_was_lost_and_who_is_told():
    judge = coordinator.Coordinator(2, patience=2)
    ends = [Pipe() for _ in range(2)]
    for _, theirs in ends:
        threading.Thread(target=judge.serve, args=(theirs,), daemon=True).start()
    job = Job(Seat(0, 2, 0, 2), lambda: ends[0][0], None, "")
    ends[1][0].send((1, ""))
    ends[1][0].close()
    with pytest.raises(ProcessError, match=r"process 1 was killed.*This is process 0 of 2"):
        job.agree("a program")
    with pytest.raises(ProcessError, match="process 1 was killed"):
        job.gather("another", b"", members=(0, 1))
    job.agree("what is its own", members=(0,))
