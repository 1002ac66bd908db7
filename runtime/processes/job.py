"""This process's part in a job of several: it joins, and agrees with the others on what they run.

`join` is called by all processes of a job, before any of them makes a PJRT client. Afterwards the
client's devices are those of all processes, of which each reaches its own.
"""

import atexit
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from typing import Any, TypeAlias

from xla_dynamo.errors import OptionError, ProcessError
from xla_dynamo.runtime.processes.environment import Seat, attempt, seat_from_environment
from xla_dynamo.switches.others import MASTER_ADDR, MASTER_PORT

_BEAT = 2.0  # seconds between signs of life
_LONG = 5.0  # after so many seconds inside a program one looks whether all are well
_UNTIL_KNOWN = 5.0  # seconds in which it is known why a collective failed
_BEGIN = 300.0  # seconds in which all processes must have come
_PATIENCE = 600.0


Connect: TypeAlias = Callable[[str, int, int, float], Any]
Open: TypeAlias = Callable[[], Connection]


class _Joined:
    def __init__(self) -> None:
        self.job: Job | None = None


class Job:
    """The job that this process has joined.

    Attributes:
        seat: which of its processes this one is.
        service: the client of PJRT's coordination service.
        host: the address at which the others reach this host.
        failure: why nothing runs over all processes any more; empty while all is well.
    """

    def __init__(self, seat: Seat, open_: Open, service: Any, host: str) -> None:
        """Take what opens a connection to the coordinator, beside the attributes."""
        self.seat, self.service, self.host = seat, service, host
        self._open = open_
        self.failure = ""
        self._inside: float | None = None  # since when a program of several processes runs
        self._main = Channel(self, open_(), "")
        self.agree, self.gather = self._main.agree, self._main.gather
        threading.Thread(target=self._beat, name="xla_dynamo-beat", daemon=True).start()
        atexit.register(self._leave)

    def channel(self, name: str) -> "Channel":
        """A line of exchanges beside the job's own, in an order of its own: of another thread.

        Args:
            name: what tells it from others, the same in all processes.
        """
        return Channel(self, self._open(), name)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Run a program of several processes in this block.

        Nothing ends a program that waits for a process that is stopped. So this process is ended
        then, with the error on its standard error.
        """
        self._inside = time.monotonic()
        try:
            yield
        finally:
            self._inside = None

    def explain(self, error: Exception) -> ProcessError:
        """The error for what a collective raised: it names the process that was lost, if any."""
        end = time.monotonic() + _UNTIL_KNOWN
        while not (why := self._state(has_failed=True)) and time.monotonic() < end:
            time.sleep(0.1)
        self.failure = why or f"a collective failed: {error}"
        return self.error(self.failure)

    def _state(self, has_failed: bool) -> str:
        """Which process is gone or silent; empty if all are well."""
        if self.failure:
            return self.failure
        try:
            return self._main.ask("state", has_failed)
        except ProcessError:
            return self.failure

    def error(self, why: str) -> ProcessError:
        """The error of this process for why nothing runs over all of them any more."""
        return ProcessError(
            f"{why}. This is process {self.seat.rank} of {self.seat.size}; nothing can run over "
            "all of them any more: end them, and start again from the last checkpoint"
        )

    def _beat(self) -> None:
        pause = threading.Event()
        lost_since: float | None = None
        while not pause.wait(_BEAT):
            if not self._main.tell("beat"):
                return
            since = self._inside
            if since is None or time.monotonic() - since < _LONG:
                lost_since = None
                continue
            if not (why := self._state(has_failed=False)):
                continue
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > _UNTIL_KNOWN and self._inside == since:
                print(f"{ProcessError.__qualname__}: {self.error(why)}", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)

    def be_patient(self, seconds: float) -> None:
        """Change how many seconds a process may come later than the others."""
        self._main.tell("patience", seconds)

    def _leave(self) -> None:
        self._main.tell("bye")


class Channel:
    """A connection to the coordinator: what is exchanged over it is in one order in all processes.

    Both methods are the job's too, for the programs that run over several processes.
    """

    def __init__(self, job: Job, connection: Connection, name: str) -> None:
        """Take the job, a new connection, and what tells it from the job's others."""
        self._job, self._connection = job, connection
        self._sending, self._asking = threading.Lock(), threading.Lock()
        connection.send((job.seat.rank, name))

    def agree(self, about: str, same: bytes = b"", members: tuple[int, ...] = ()) -> None:
        """Wait until the members have come to the same thing.

        Args:
            about: what it is, for people. What it has in parentheses need not be equal in all.
            same: what must be equal in all.
            members: their ranks in order; () for all.

        Raises:
            ProcessError: one is gone, silent or late, or has come to something else.
        """
        self.gather(about, b"", same, members)

    def gather(
        self, about: str, payload: bytes, same: bytes = b"", members: tuple[int, ...] = ()
    ) -> list[bytes]:
        """`agree`, and the payloads of the members, in their order."""
        seat = self._job.seat
        if members == (seat.rank,):
            return [payload]
        if len(members) == seat.size and members == tuple(range(seat.size)):
            members = ()
        answer = self.ask("exchange", members, about, same, payload)
        return [b""] * (len(members) or seat.size) if answer is None else answer

    def tell(self, *message: Any) -> bool:
        """Send what has no answer; whether the coordinator is still there."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            return False
        return True

    def ask(self, *message: Any) -> Any:
        """Send what has an answer, and wait for it."""
        job = self._job
        with self._asking:
            if job.failure:
                raise job.error(job.failure)
            try:
                with self._sending:
                    self._connection.send(message)
                kind, answer = self._connection.recv()
            except (EOFError, OSError) as error:
                job.failure = f"the job's coordinator has gone ({error})"
                raise job.error(job.failure) from error
            if kind == "failed":
                job.failure = answer
                raise job.error(answer)
            return answer


_state = _Joined()  # no `kept` state: a process joins once


def joined() -> Job | None:
    """The job that this process has joined; None before, and where there is one process."""
    return _state.job


def seat() -> Seat:
    """Which of how many processes this one is: as it has joined, or as its launcher wrote."""
    return _state.job.seat if _state.job is not None else seat_from_environment()


def join(
    connect: Connect, patience: float | None = None, told: tuple[Seat, Any] | None = None
) -> Job | None:
    """Join the job that the environment tells of; every process of it must.

    A launcher wrote there what torchrun writes: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT. Of Slurm's variables the numbers are taken.

    Args:
        connect: the function that connects to PJRT's coordination service at "host:port", given
            the rank, the number of processes, and the seconds in which all must have come.
        patience: how many seconds a process may come later than the others to what they run
            together, 600 unless given.
        told: where the environment does not tell: which process this one is, and torch's store, in
            which all of them meet.

    Returns:
        The job; None where there is one process. The second call returns the same, and changes
        `patience` if it is given.

    Raises:
        OptionError: the environment does not tell where the first process listens.
        ProcessError: not all of them have come in 300 seconds.
    """
    if _state.job is not None:
        if patience is not None:
            _state.job.be_patient(patience)
        return _state.job
    found, store = told or (seat_from_environment(), None)
    if found.size == 1:
        return None
    meeting = _meeting_of(found, store)
    if found.rank == 0:
        meeting.set("xla_dynamo", json.dumps(_start_coordinator(found, patience or _PATIENCE)))
    try:
        way = json.loads(meeting.get("xla_dynamo"))
        address, key = (way["host"], way["connections"]), bytes.fromhex(way["key"])
        service = connect(f"{way['host']}:{way['service']}", found.rank, found.size, _BEGIN)
        host = _own_address(*address)
        _state.job = Job(found, lambda: Client(address, authkey=key), service, host)
    except (RuntimeError, OSError, EOFError) as error:
        place = "" if told else f", at {MASTER_ADDR.get()}:{MASTER_PORT.get()}"
        raise ProcessError(
            f"process {found.rank} of {found.size} waited {_BEGIN:.0f} s in vain for the others"
            f"{place}: {error}"
        ) from error
    return _state.job


def _meeting_of(seat: Seat, store: Any) -> Any:
    """Torch's store, where the first process writes how it is reached."""
    import datetime

    from torch.distributed import PrefixStore, rendezvous

    if store is not None:
        return PrefixStore("xla_dynamo", store)
    if missing := [s.name for s in (MASTER_ADDR, MASTER_PORT) if not s.get()]:
        raise OptionError(
            f"this is process {seat.rank} of {seat.size}, and the environment lacks "
            f"{' and '.join(missing)}, where the first one listens: start the processes by "
            "xla_dynamo.launch or torchrun, or set them"
        )
    wait = datetime.timedelta(seconds=_BEGIN)
    store, *_ = next(rendezvous("env://", seat.rank, seat.size, timeout=wait))
    return PrefixStore(f"xla_dynamo/{attempt()}", store)


def _start_coordinator(seat: Seat, patience: float) -> dict[str, Any]:
    """Start the coordinator; returns how it is reached."""
    host = MASTER_ADDR.get() or socket.gethostname()
    host = "127.0.0.1" if seat.size == seat.local_size else host
    key = secrets.token_hex(16)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "xla_dynamo.runtime.coordination"),
            *(str(seat.size), str(patience), host),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interruption from the keyboard is for the job's processes
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{key}\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise ProcessError(
            f"the coordinator of the job could not start at {host} (exit status {process.wait()})"
        )
    _coordinators.append(process)
    return {"host": host, "key": key, **json.loads(line)}


# What has started here, whose standard input must stay open for as long as this process lives.
_coordinators: list[subprocess.Popen] = []


def _own_address(host: str, port: int) -> str:
    """The address of this host on the network over which it reaches the coordinator."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(host), port))
        return probe.getsockname()[0]
