"""Read from the environment which of how many processes this one is, as its launcher wrote it."""

import dataclasses
import os
import socket
from collections.abc import Mapping
from typing import Any

from xla_dynamo.errors import OptionError


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
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")


def seat_from_environment(environment: Mapping[str, str] = os.environ) -> Seat:
    """The seat of this process; one of one where no launcher has written another.

    Raises:
        OptionError: what a launcher wrote are no numbers of such a seat.
    """
    for names in (_TORCHRUN, _SLURM):
        if all(name in environment for name in names[:2]):
            return _seat(names, environment)
    return Seat()


def tells_all(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher has written which process this is, among all and on its host."""
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


def attempt(environment: Mapping[str, str] = os.environ) -> int:
    """How often torchrun has started the job again: its store may still have what was written."""
    return int(environment.get("TORCHELASTIC_RESTART_COUNT", 0))
