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
        ValueError: it is of another kind.
        RuntimeError: its index is not 0.
    """
    checked_index(device)


def checked_index(device: Any) -> int:
    """The index of a device, or of its name.

    Raises:
        ValueError: it is of another kind.
        RuntimeError: its index is not 0.
    """
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "xla":
            raise ValueError(f"expected the device 'xla:0', but got {str(device)!r}")
        device = device.index or 0
    if device > 0:  # a negative index is the present device
        raise RuntimeError(f"invalid device ordinal {device}: there is one device, 'xla:0'")
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
    compute()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes of `torch.autocast("xla")`."""
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed the device's random numbers; `torch.manual_seed` does, too.

    Args:
        seed: the seed, as for `torch.manual_seed`.
        device: as in PyTorch/XLA; there is one.
    """
    compute()  # what was drawn before was drawn with the seed before
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
    compute()
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
    compute()
    random_state.generator.set_state(state)
