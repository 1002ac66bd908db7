"""torch as it is at the start of a thread: what traces and runs graphs must not see the caller's.

An operator on an 'xla' tensor may have a whole graph traced, compiled and run: below autograd,
under autocast, in inference mode or under a mode of the user's.
"""

import concurrent.futures
import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes

# This module may be imported in any state.
with concurrent.futures.ThreadPoolExecutor(1) as _thread:
    _INCLUDED = _thread.submit(torch._C._dispatch_tls_local_include_set).result()
    _EXCLUDED = _thread.submit(torch._C._dispatch_tls_local_exclude_set).result()


@contextlib.contextmanager
def clean_state() -> Iterator[None]:
    """Set aside modes, autocast, inference mode and the keys that the dispatcher leaves out."""
    with (
        torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield
