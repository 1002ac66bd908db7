"""The state of random numbers as PyTorch/XLA has it: one integer, which is a seed."""

import hashlib
from typing import Any

import torch

import xla_dynamo
from xla_dynamo.lazy.device_module import initial_seed

_BITS = 63


def get_rng_state(device: Any = None) -> int:
    """A number that `set_rng_state` takes, so that the same numbers are drawn from here on.

    It is the seed where nothing has been drawn since that was set. Else the random numbers go on
    from a seed that is made of what was drawn.

    Args:
        device: as in PyTorch/XLA; there is one.
    """
    seed = initial_seed()
    state = xla_dynamo.get_rng_state()
    if torch.equal(state, torch.Generator().manual_seed(seed).get_state()):
        return seed
    digest = hashlib.sha256(state.numpy().tobytes()).digest()
    seed = int.from_bytes(digest, "little") >> (len(digest) * 8 - _BITS)
    xla_dynamo.manual_seed(seed)
    return seed


def set_rng_state(seed: int | torch.Tensor, device: Any = None) -> None:
    """Seed the random numbers; or put them into a state that `xla_dynamo.get_rng_state` gave.

    Args:
        seed: the number, as a tensor of one integer too; or the state.
        device: as in PyTorch/XLA; there is one.
    """
    is_number = isinstance(seed, torch.Tensor) and seed.numel() == 1
    xla_dynamo.set_rng_state(int(seed) if is_number else seed)
