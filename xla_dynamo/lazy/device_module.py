"""`torch.xla`: the functions that torch expects in a device's module."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from xla_dynamo.lazy import memory, random_state
from xla_dynamo.lazy.steps import get_memory_info
from xla_dynamo.lazy.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    wait,
)
from xla_dynamo.runtime import forks, topology

__all__ = ["Event", "Stream", "current_stream", "default_stream", "set_stream", "stream"]

# What torch's checkpointing reads, to save the state of random numbers.
_initialized = True


def is_available() -> bool:
    """Whether there is such a device."""
    return True


def is_initialized() -> bool:
    """Whether it is ready."""
    return True


def _is_in_bad_fork() -> bool:
    return forks.forked


def _lazy_init() -> None:
    pass


def device_count() -> int:
    """The number of the job's processes on this host: each has one device.

    Torch gives a process no more of a device that is written in Python. Scripts take the rank
    modulo this number for the index of their own device.
    """
    return topology.local_process_count()


def current_device() -> int:
    """The index of the device."""
    return 0


def set_device(device: Any) -> None:
    """Choose a device: there is one.

    Raises:
        ValueError: it is of another kind.
        RuntimeError: its index is not 0.
    """
    checked_index(device)


def checked_index(device: Any) -> int:
    """The index of this process's device, 0, given an index, a device or its name.

    In a job the device has the index of the process on its host as another name: scripts for other
    devices, of which each process sees all, ask for that one.

    Raises:
        ValueError: it is of another kind.
        RuntimeError: its index is neither 0 nor that of the process.
    """
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "xla":
            raise ValueError(f"expected the device 'xla:0', but got {str(device)!r}")
        device = device.index or 0
    if device > 0 and device != (own := topology.local_ordinal()):  # negative: the present device
        known = f", which is 'xla:{own}' too" if own else ""
        raise RuntimeError(f"invalid device ordinal {device}: there is one device, 'xla:0'{known}")
    return 0


@contextlib.contextmanager
def device(device: Any) -> Iterator[None]:
    """Run a block on a device.

    Raises:
        ValueError: it is of another kind.
        RuntimeError: its index is not 0.
    """
    checked_index(device)
    yield


def synchronize(device: Any = None) -> None:
    """Compute all that is pending."""
    wait()


def get_device_name(device: Any = None) -> str:
    """What the device computes with, as in "cpu"."""
    return str(memory.placement().device.device_kind)


def empty_cache() -> None:
    """Give memory back that nobody needs: none is kept."""


def memory_allocated(device: Any = None) -> int:
    """The bytes of the device's computed tensors."""
    return get_memory_info()["bytes_used"]


memory_reserved = memory_allocated


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors have had, where the platform tells; else those of now."""
    told = get_memory_info()
    return told.get("peak_bytes_used", told["bytes_used"])


def memory_stats(device: Any = None) -> dict[str, int]:
    """What `xla_dynamo.get_memory_info` tells."""
    return get_memory_info()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The same as a text."""
    return "\n".join(f"{name}: {count}" for name, count in get_memory_info().items())


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes of `torch.autocast("xla")`."""
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed the device's random numbers; `torch.manual_seed` does, too.

    Args:
        seed: the seed, as for `torch.manual_seed`.
        device: as in PyTorch/XLA; there is one.
    """
    random_state.generator.manual_seed(seed)


manual_seed_all = manual_seed


def initial_seed() -> int:
    """The seed of the device's random numbers."""
    return random_state.generator.initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The state of the device's random numbers, a tensor of bytes on the host.

    Args:
        device: as in PyTorch/XLA; there is one.
    """
    return random_state.generator.get_state()


def set_rng_state(state: torch.Tensor | int, device: Any = None) -> None:
    """Put the device's random numbers into a state that they have had.

    Args:
        state: what `get_rng_state` gave; or a number, which is a seed, as in PyTorch/XLA.
        device: as in PyTorch/XLA; there is one.
    """
    if isinstance(state, int):
        manual_seed(state)
        return
    random_state.generator.set_state(state)


def seed() -> int:
    """Seed the device's random numbers with a number that nobody knows, and return it."""
    return random_state.generator.seed()


seed_all = seed


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices: of one."""
    return [get_rng_state()]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    """Put all devices' random numbers into states that `get_rng_state_all` gave."""
    for index, state in enumerate(states):
        set_rng_state(state, index)


default_generators = (random_state.generator,)
