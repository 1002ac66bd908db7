"""`torch.xla`: the functions that torch expects in a device's module."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from xla_dynamo.lazy import random_state
from xla_dynamo.lazy.execution import compute
from xla_dynamo.runtime import forks

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
    """One: torch gives no more to a device that is written in Python."""
    return 1


def current_device() -> int:
    """The index of the device."""
    return 0


def set_device(device: Any) -> None:
    """Choose a device: there is one.

    Raises:
        ValueError: it is none of ours.
    """
    checked_index(device)


def checked_index(device: Any) -> int:
    """The index of a device, or of its name.

    Raises:
        ValueError: it is none of ours.
    """
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if index > 0 or (not isinstance(device, int) and torch.device(device).type != "xla"):
        raise ValueError(f"there is one device, 'xla:0', and no {device!r}")
    return 0


@contextlib.contextmanager
def device(device: Any) -> Iterator[None]:
    """Run a block on a device.

    Raises:
        ValueError: it is none of ours.
    """
    checked_index(device)
    yield


def synchronize(device: Any = None) -> None:
    """Compute all that is pending."""
    compute()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes of `torch.autocast("xla")`."""
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int) -> None:
    """Seed the device's random numbers: `torch.manual_seed` does, too."""
    compute()  # what was drawn before was drawn with the seed before
    random_state.generator.manual_seed(seed)


manual_seed_all = manual_seed


def initial_seed() -> int:
    """The seed of the device's random numbers."""
    return random_state.generator.initial_seed()


def get_rng_state(device: Any = "xla") -> torch.Tensor:
    """The state of the device's random numbers, a tensor of bytes on the host."""
    compute()
    return random_state.generator.get_state()


def set_rng_state(state: torch.Tensor, device: Any = "xla") -> None:
    """Put the device's random numbers into a state that they have had."""
    compute()
    random_state.generator.set_state(state)
