"""Runs at `import torch`: makes our names known, and keeps torch's own `openxla` from taking one.

torch registers a backend called "openxla" itself, which needs torch_xla. It does so when Dynamo
imports `torch._dynamo.backends.torchxla`. An empty module of that name prevents this, and Dynamo
takes the entry point of the group `torch_dynamo_backends`, which is ours. `import torch` imports
this file, so this file imports nothing slow.
"""

import os
import sys
import types
from typing import Any

_TORCHS_OWN = "torch._dynamo.backends.torchxla"


def claim_openxla() -> None:
    """Claim our names, unless XLA_DYNAMO_DISABLE=1 is set: torch has an "openxla" of its own.

    With XLA_DYNAMO_DISABLE=1 both registrations are torch's to make: its own comes first, so
    `torch.compile(backend="openxla")` means torch_xla again.
    """
    if os.environ.get("XLA_DYNAMO_DISABLE", "0") not in ("", "0"):
        return
    if _TORCHS_OWN not in sys.modules:
        placeholder = types.ModuleType(
            _TORCHS_OWN, "Left empty by xla_dynamo, whose entry point registers 'openxla'."
        )
        sys.modules[_TORCHS_OWN] = placeholder
    _register_process_groups()


def _register_process_groups() -> None:
    """Let torch.distributed know the backend "xla" and the addresses "xla://"."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    if "xla" not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(
            "xla", _process_group, extended_api=True, devices=["cpu", "xla"]
        )
        distributed.register_rendezvous_handler("xla", _meeting)


# Found when they are called, since they are slow to import.


def _process_group(given: Any, options: Any) -> Any:
    from xla_dynamo.distributed.process_group import make_process_group

    return make_process_group(given, options)


def _meeting(*args: Any, **options: Any) -> Any:
    from xla_dynamo.distributed.meetings import meeting

    return meeting(*args, **options)
