"""Who of a job's processes is there, late or gone, and whether they come to the same thing.

It runs in a process of its own (`runtime.coordination`). Each of the job's processes keeps a
connection to it, and sends a beat every second or two, and an exchange before each program that
runs over several processes. What a thread exchanges in an order of its own goes over a channel,
which is one more connection. The coordinator answers when all members have sent theirs, or tells
at once which one is gone, silent, or has come to another program.
"""

import contextlib
import dataclasses
import threading
import time
from multiprocessing.connection import Connection, Listener

# After so many seconds without a beat a process is taken for stopped.
SILENCE = 30.0
TICK = 1.0
_ENDED = "has ended"


@dataclasses.dataclass(slots=True)
class _Exchange:
    """What the members of a group have sent so far.

    Attributes:
        since: when the first of them came.
        sent: by rank: what it is about, what must be equal, and what the others get.
    """

    since: float
    sent: dict[int, tuple[str, bytes, bytes]] = dataclasses.field(default_factory=dict)


class Coordinator:
    """The state of a job's processes, which a thread for each connection changes."""

    def __init__(self, size: int, patience: float) -> None:
        """Take the number of processes, and how many seconds one may come later than the others."""
        self._everyone, self._patience = tuple(range(size)), patience
        self._lock = threading.RLock()
        self._connections: dict[tuple[int, str], Connection] = {}  # by rank and channel
        self._beats: dict[int, float] = {}
        self._last: dict[int, str] = {}  # what each sent an exchange about before
        self._gone: dict[int, str] = {}
        self._open: dict[tuple[str, tuple[int, ...]], _Exchange] = {}  # by channel and members
        self._failure = ""

    def serve(self, connection: Connection) -> None:
        """Answer a process until it leaves; it says first its rank and the channel."""
        rank, channel = connection.recv()
        try:
            with self._lock:
                self._connections[rank, channel] = connection
                self._beats[rank] = time.monotonic()
            while True:
                kind, *content = connection.recv()
                with self._lock:
                    self._beats[rank] = time.monotonic()
                    if kind == "exchange":
                        self._take(rank, channel, *content)
                    elif kind == "state":
                        self._send(rank, channel, "state", self._state(*content))
                    elif kind == "patience":
                        (self._patience,) = content
                    elif kind == "bye":
                        self._leave(rank, channel, _ENDED)
                        return
        except (EOFError, OSError):
            with self._lock:
                self._leave(rank, channel, "was killed, or has crashed")

    def watch(self) -> None:
        """Fail what waits for processes that are silent or late; never returns."""
        while True:
            time.sleep(TICK)
            with self._lock:
                now = time.monotonic()
                for (_, members), exchange in list(self._open.items()):
                    missing = [r for r in members if r not in exchange.sent]
                    silent = [r for r in missing if now - self._beats.get(r, now) > SILENCE]
                    if silent:
                        self._fail(
                            f"process {_names(silent)} has not been heard of for {SILENCE:.0f} s: "
                            "it is stopped, or its machine or the network is down"
                        )
                    elif now - exchange.since > self._patience:
                        about = next(iter(exchange.sent.values()))[0]
                        self._fail(
                            f"process {_names(missing)} has not come to {about} in "
                            f"{self._patience:.0f} s, where the others wait"
                            + "".join(f"; {r} last ran {self._last.get(r)}" for r in missing)
                        )

    def _take(
        self,
        rank: int,
        channel: str,
        members: tuple[int, ...],
        about: str,
        same: bytes,
        payload: bytes,
    ) -> None:
        if self._failure:
            self._send(rank, channel, "failed", self._failure)
            return
        # What all do is short in both ways: of a thousand processes each would send a thousand.
        members = members or self._everyone
        exchange = self._open.setdefault((channel, members), _Exchange(time.monotonic()))
        first = next(iter(exchange.sent.items()), None)
        exchange.sent[rank] = about, same, payload
        if first is not None and (_compared(first[1][0]), first[1][1]) != (_compared(about), same):
            self._fail(_difference(first[0], first[1][0], rank, about))
        elif lost := [r for r in self._gone if r in members and r not in exchange.sent]:
            self._fail(self._why_gone(min(lost)))
        elif len(exchange.sent) == len(members):
            del self._open[channel, members]
            self._last.update(dict.fromkeys(members, about))
            payloads = [exchange.sent[r][2] for r in members]
            answer = payloads if any(payloads) else None
            for r in members:
                self._send(r, channel, "done", answer)

    def _leave(self, rank: int, channel: str, why: str) -> None:
        self._connections.pop((rank, channel), None)
        if channel:
            return  # the connection of the process itself tells of its end
        self._gone[rank] = why
        if any(rank in members for _, members in self._open):
            self._fail(self._why_gone(rank))

    def has_company(self) -> bool:
        """Whether any process is still connected."""
        with self._lock:
            return bool(self._connections)

    def _why_gone(self, rank: int) -> str:
        last = self._last.get(rank)
        return f"process {rank} {self._gone[rank]}" + (f"; it last ran {last}" if last else "")

    def _fail(self, why: str) -> None:
        """Tell all who wait, and whoever comes later."""
        self._failure = self._failure or why
        for (channel, _), exchange in self._open.items():
            for rank in exchange.sent:
                self._send(rank, channel, "failed", self._failure)
        self._open.clear()

    def _send(self, rank: int, channel: str, kind: str, answer: object) -> None:
        """Answer a process, unless it has gone: then its own thread notices."""
        if (rank, channel) in self._connections:
            with contextlib.suppress(OSError):
                self._connections[rank, channel].send((kind, answer))

    def _state(self, has_failed: bool) -> str:
        """Who is gone or silent; empty if all are well.

        Whoever has ended had done its part, so it matters only where something has failed.
        """
        if self._failure:
            return self._failure
        lost = [r for r, why in self._gone.items() if why != _ENDED]
        if lost or (has_failed and self._gone):
            return self._why_gone(min(lost or self._gone))
        now = time.monotonic()
        beats = {r: beat for r, beat in self._beats.items() if r not in self._gone}
        silent = [r for r, beat in beats.items() if now - beat > SILENCE / (2 if has_failed else 1)]
        return f"process {_names(silent)} is stopped, or cannot be reached" if silent else ""


def _names(ranks: list[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _compared(about: str) -> str:
    """What must be equal in all: not the line of the user's code, in parentheses.

    One may come to a collective in its backward, and another in code that waits for the first.
    """
    return about.partition(" (")[0]


def _difference(rank: int, about: str, other: int, other_about: str) -> str:
    (rank, about), (other, other_about) = sorted([(rank, about), (other, other_about)])
    if about == other_about:
        return f"process {rank} and process {other} differ in {about}"
    both = f"process {rank} has come to {about}, and process {other} to {other_about}"
    if about.startswith("the program") and other_about.startswith("the program"):
        both += (
            ": all run one program, which a Python number, a size or a branch makes another where "
            "it is not the same in all; pass such a number as a tensor"
        )
    return both


def accept(listener: Listener, coordinator: Coordinator) -> None:
    """Serve each process that connects, in a thread; never returns."""
    while True:
        try:
            connection = listener.accept()
        except Exception:  # somebody without the key, or who left at once
            continue
        threading.Thread(target=coordinator.serve, args=(connection,), daemon=True).start()
