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
from xla_dynamo.runtime.processes.environment import Seat, seat_from_environment

_BEAT = 2.0  # seconds between signs of life
_LONG = 5.0  # after so many seconds inside a program one looks whether all are well
_UNTIL_KNOWN = 5.0  # seconds in which it is known why a collective failed
_BEGIN = 300.0  # seconds in which all processes must have come
_PATIENCE = 600.0


Connect: TypeAlias = Callable[[str, int, int, float], Any]


class _Joined:
    def __init__(self) -> None:
        self.job: Job | None = None


class Job:
    """The job that this process has joined.

    Attributes:
        seat: which of its processes this one is.
        service: the client of PJRT's coordination service.
        host: the address at which the others reach this host.
    """

    def __init__(self, seat: Seat, connection: Connection, service: Any, host: str) -> None:
        self.seat, self.service, self.host = seat, service, host
        self._connection = connection
        self._sending, self._asking = threading.Lock(), threading.Lock()
        self._failure = ""
        self._inside: float | None = None  # since when a program of several processes runs
        connection.send(seat.rank)
        threading.Thread(target=self._beat, name="xla_dynamo-beat", daemon=True).start()
        atexit.register(self._leave)

    def agree(self, about: str, same: bytes = b"", members: tuple[int, ...] = ()) -> None:
        """Wait until the members have come to the same thing.

        Args:
            about: what it is, for people.
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
        everyone = members or tuple(range(self.seat.size))
        if everyone == (self.seat.rank,):
            return [payload]
        return self._ask("exchange", everyone, about, same, payload)

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
        self._failure = why or f"a collective failed: {error}"
        return self._error(self._failure)

    def _state(self, has_failed: bool) -> str:
        """Which process is gone or silent; empty if all are well."""
        if self._failure:
            return self._failure
        try:
            return self._ask("state", has_failed)
        except ProcessError:
            return self._failure

    def _ask(self, *message: Any) -> Any:
        with self._asking:
            if self._failure:
                raise self._error(self._failure)
            try:
                with self._sending:
                    self._connection.send(message)
                kind, answer = self._connection.recv()
            except (EOFError, OSError) as error:
                self._failure = f"the job's coordinator has gone ({error})"
                raise self._error(self._failure) from error
            if kind == "failed":
                self._failure = answer
                raise self._error(answer)
            return answer

    def _error(self, why: str) -> ProcessError:
        return ProcessError(
            f"{why}. This is process {self.seat.rank} of {self.seat.size}; nothing can run over "
            "all of them any more: end them, and start again from the last checkpoint"
        )

    def _beat(self) -> None:
        pause = threading.Event()
        lost_since: float | None = None
        while not pause.wait(_BEAT):
            try:
                with self._sending:
                    self._connection.send(("beat",))
            except OSError:
                return
            since = self._inside
            if since is None or time.monotonic() - since < _LONG:
                lost_since = None
                continue
            if not (why := self._state(has_failed=False)):
                continue
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > _UNTIL_KNOWN and self._inside == since:
                print(f"{ProcessError.__qualname__}: {self._error(why)}", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)

    def _leave(self) -> None:
        try:
            with self._sending:
                self._connection.send(("bye",))
                self._connection.close()
        except OSError:
            pass


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
        The job; None where there is one process. The second call returns the same.

    Raises:
        OptionError: the environment does not tell where the first process listens.
        ProcessError: not all of them have come in 300 seconds.
    """
    if _state.job is not None:
        return _state.job
    found, store = told or (seat_from_environment(), None)
    if found.size == 1:
        return None
    meeting = _meeting_of(found, store)
    if found.rank == 0:
        meeting.set("xla_dynamo", json.dumps(_start_coordinator(found, patience or _PATIENCE)))
    try:
        way = json.loads(meeting.get("xla_dynamo"))
        connection = Client((way["host"], way["connections"]), authkey=bytes.fromhex(way["key"]))
        service = connect(f"{way['host']}:{way['service']}", found.rank, found.size, _BEGIN)
    except (RuntimeError, OSError, EOFError) as error:
        place = "" if told else f", at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ProcessError(
            f"process {found.rank} of {found.size} waited {_BEGIN:.0f} s in vain for the others"
            f"{place}: {error}"
        ) from error
    _state.job = Job(found, connection, service, _own_address(way["host"], way["connections"]))
    return _state.job


def _meeting_of(seat: Seat, store: Any) -> Any:
    """Torch's store, where the first process writes how it is reached."""
    import datetime

    from torch.distributed import PrefixStore, rendezvous

    if store is not None:
        return PrefixStore("xla_dynamo", store)

    if missing := [n for n in ("MASTER_ADDR", "MASTER_PORT") if n not in os.environ]:
        raise OptionError(
            f"this is process {seat.rank} of {seat.size}, and the environment lacks "
            f"{' and '.join(missing)}, where the first one listens: start the processes by "
            "xla_dynamo.launch or torchrun, or set them"
        )
    wait = datetime.timedelta(seconds=_BEGIN)
    store, *_ = next(rendezvous("env://", seat.rank, seat.size, timeout=wait))
    return PrefixStore("xla_dynamo", store)


def _start_coordinator(seat: Seat, patience: float) -> dict[str, Any]:
    """Start the coordinator; returns how it is reached."""
    host = os.environ.get("MASTER_ADDR", socket.gethostname())
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
