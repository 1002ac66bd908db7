"""Trace and run graphs in the state that torch has at the start of a thread, not the caller's.

An operator on an 'xla' tensor may cause a whole graph to be traced, compiled and run. The caller
may be below autograd, under autocast, in inference mode, or under a mode of the user's.
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
