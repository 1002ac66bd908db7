"""Jobs of several processes: launching them, what they exchange, and torch.distributed."""

import importlib
from typing import Any

__all__ = ["XlaFullyShardedDataParallel"]


# At first use: torch's registration reads this package, and must not wait for the lazy device.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("xla_dynamo.distributed.fsdp"), name)
