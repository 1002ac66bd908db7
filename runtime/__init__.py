"""StableHLO modules on PJRT: clients, compilation, buffers, executables, metrics.

The public names are those of PyTorch/XLA's `torch_xla.runtime`, and `set_device_count`.
"""

import importlib
from typing import Any

# Looked up at first use: to import jax takes longer than whoever imports a part of this may wait.
_LAZY = {
    "get_memory_info": "process_memory",
    "initialize_cache": "cache_settings",
    "set_device_count": "clients",
    "addressable_device_count": "topology",
    "addressable_runtime_device_count": "topology",
    "device_type": "topology",
    "global_device_count": "topology",
    "global_ordinal": "topology",
    "global_runtime_device_attributes": "topology",
    "global_runtime_device_count": "topology",
    "initialize_processes": "topology",
    "is_spmd": "topology",
    "local_device_count": "topology",
    "local_ordinal": "topology",
    "local_process_count": "topology",
    "process_count": "topology",
    "process_index": "topology",
    "runtime_device_attributes": "topology",
    "set_device_type": "topology",
    "use_spmd": "topology",
    "world_size": "topology",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
