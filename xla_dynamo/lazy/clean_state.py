"""torch as it is at the start of a thread: what traces and runs graphs must not see the caller's.

An operator on an 'xla' tensor may have a whole graph traced, compiled and run: below autograd,
under autocast, in inference mode or under a mode of the user's.
"""

import concurrent.futures
import contextlib
from collections.abc import Iterator

import torch

from xla_dynamo.torch_private import (
    DisableAutocast,
    DisableTorchFunction,
    ForceDispatchKeys,
    disable_current_modes,
    excluded_keys,
    included_keys,
)

# This module may be imported in any state.
with concurrent.futures.ThreadPoolExecutor(1) as _thread:
    _INCLUDED = _thread.submit(included_keys).result()
    _EXCLUDED = _thread.submit(excluded_keys).result()


@contextlib.contextmanager
def clean_state() -> Iterator[None]:
    """Set aside modes, autocast, inference mode and the keys that the dispatcher leaves out."""
    with (
        ForceDispatchKeys(_INCLUDED, _EXCLUDED),
        disable_current_modes(),
        DisableTorchFunction(),
        DisableAutocast(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield
