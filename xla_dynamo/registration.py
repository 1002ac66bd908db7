"""Runs at `import torch`: keeps torch's own backend `openxla` from taking the name.

torch registers a backend called "openxla" itself, which needs torch_xla. It does so when Dynamo
imports `torch._dynamo.backends.torchxla`. An empty module of that name prevents this, and Dynamo
takes the entry point of the group `torch_dynamo_backends`, which is ours. `import torch` imports
this file, so this file imports nothing slow.
"""

import os
import sys
import types

_TORCHS_OWN = "torch._dynamo.backends.torchxla"


def claim_openxla() -> None:
    """Keep torch's own "openxla" from registering, unless XLA_DYNAMO_DISABLE=1 is set.

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
