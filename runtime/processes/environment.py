"""Read from the environment which of how many processes this one is, as its launcher wrote it."""

import dataclasses
import socket
from collections.abc import Mapping
from typing import Any

from xla_dynamo.errors import OptionError
from xla_dynamo.switches import others


@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """Which of a job's processes this one is.

    Attributes:
        rank: its number among all, from 0.
        size: the number of all.
        local_rank: its number among those of this host, from 0.
        local_size: the number of those.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


# The names of torchrun, which `xla_dynamo.launch` writes too, and those of Slurm.
_OF_TORCHRUN = (others.RANK, others.WORLD_SIZE, others.LOCAL_RANK, others.LOCAL_WORLD_SIZE)
_OF_SLURM = (
    *(others.SLURM_PROCID, others.SLURM_NTASKS),
    *(others.SLURM_LOCALID, others.SLURM_NTASKS_PER_NODE),
)
_SWITCHES = (*_OF_TORCHRUN, *_OF_SLURM)
_TORCHRUN, _SLURM = (tuple(s.name for s in some) for some in (_OF_TORCHRUN, _OF_SLURM))


def seat_from_environment(environment: Mapping[str, str] | None = None) -> Seat:
    """The seat of this process; one of one where no launcher has written another.

    Args:
        environment: what a launcher wrote; None for this process's environment variables.

    Raises:
        OptionError: what a launcher wrote are no numbers of such a seat.
    """
    environment = _of_launcher() if environment is None else environment
    for names in (_TORCHRUN, _SLURM):
        if all(name in environment for name in names[:2]):
            return _seat(names, environment)
    return Seat()


def _of_launcher() -> dict[str, str]:
    """The environment variables of launchers that are set."""
    texts = ((switch.name, switch.text()) for switch in _SWITCHES)
    return {name: text for name, text in texts if text is not None}


def tells_all(environment: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher has written which process this is, among all and on its host."""
    environment = _of_launcher() if environment is None else environment
    return any(all(name in environment for name in names[:3]) for names in (_TORCHRUN, _SLURM))


def seat_among(store: Any, rank: int, size: int) -> Seat:
    """The seat of one of so many processes, which tell each other on which hosts they are.

    Args:
        store: torch's store, in which all of them meet.
        rank: the number of this process.
        size: the number of all.
    """
    store.set(f"host of {rank}", socket.gethostname())
    hosts = [store.get(f"host of {other}") for other in range(size)]
    here = [other for other in range(size) if hosts[other] == hosts[rank]]
    return Seat(rank, size, here.index(rank), len(here))


def _seat(names: tuple[str, ...], environment: Mapping[str, str]) -> Seat:
    given = [environment.get(name, default) for name, default in zip(names, "0101", strict=True)]
    if not all(text.isdecimal() for text in given):
        told = ", ".join(f"{name}={text!r}" for name, text in zip(names, given, strict=True))
        raise OptionError(f"the environment has {told}: these are numbers, from 0")
    seat = Seat(*map(int, given))
    if seat.rank >= seat.size or seat.local_rank >= seat.local_size or seat.local_size > seat.size:
        raise OptionError(f"the environment variables {', '.join(names)} say {seat}: there is none")
    return seat


def attempt() -> int:
    """How often torchrun has started the job again: its store may still have what was written."""
    return int(others.RESTARTS.get() or 0)
