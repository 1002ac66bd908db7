"""`torch.compile(model, backend="openxla")` on any device that has a PJRT plugin."""

import importlib
from typing import Any

from xla_dynamo.errors import (
    CheckpointError,
    CompileError,
    ExecutionError,
    LoweringError,
    OptionError,
    ProcessError,
    ShardingError,
    StorageError,
    UnsupportedDtype,
    UnsupportedError,
    UnsupportedOperator,
    UnsupportedTensor,
    XlaDynamoError,
)

# Looked up at first use: torch reads an entry point of this package during its own import, which
# must not wait for the import of jax.
_LAZY = {
    "Context": "xla_dynamo.lowerings.table",
    "lowers": "xla_dynamo.lowerings.table",
    "call_jax": "xla_dynamo.lowerings.builders.from_jax",
    "register_pass": "xla_dynamo.lowerings.passes.registered",
    "bisect_passes": "xla_dynamo.reports.bisect_passes",
    "compile_graph": "xla_dynamo.execution.compile_graph",
    "explain": "xla_dynamo.reports.explain",
    "openxla": "xla_dynamo.backend",
    "precompile": "xla_dynamo.execution.precompile",
    "refreeze": "xla_dynamo.memory.changes",
    "train_step": "xla_dynamo.training.train_step",
    "add_step_closure": "xla_dynamo.lazy.step_closures",
    "compile": "xla_dynamo.lazy.steps",
    "eager_mode": "xla_dynamo.lazy.steps",
    "get_memory_info": "xla_dynamo.lazy.steps",
    "is_eager_mode": "xla_dynamo.lazy.steps",
    "mark_step": "xla_dynamo.lazy.steps",
    "optimizer_step": "xla_dynamo.lazy.steps",
    "step": "xla_dynamo.lazy.steps",
    "sync": "xla_dynamo.lazy.steps",
    "unlazy": "xla_dynamo.lazy.steps",
    "wait_device_ops": "xla_dynamo.lazy.step_closures",
    "MpDeviceLoader": "xla_dynamo.lazy.loaders",
    "to_dlpack": "xla_dynamo.lazy.transfers",
    "ParallelLoader": "xla_dynamo.lazy.loaders",
    "device_count": "xla_dynamo.lazy.devices",
    "devices": "xla_dynamo.lazy.devices",
    "is_master_ordinal": "xla_dynamo.lazy.devices",
    "real_devices": "xla_dynamo.lazy.devices",
    "xla_device": "xla_dynamo.lazy.devices",
    "xla_device_hw": "xla_dynamo.lazy.devices",
    "get_rng_state": "xla_dynamo.lazy.device_module",
    "manual_seed": "xla_dynamo.lazy.device_module",
    "set_rng_state": "xla_dynamo.lazy.device_module",
    "save": "xla_dynamo.lazy.saving",
    "launch": "xla_dynamo.distributed.launching",
    "spawn": "xla_dynamo.distributed.launching",
}

__all__ = [
    "CheckpointError",
    "CompileError",
    "Context",
    "ExecutionError",
    "LoweringError",
    "MpDeviceLoader",
    "OptionError",
    "ParallelLoader",
    "ProcessError",
    "ShardingError",
    "StorageError",
    "UnsupportedDtype",
    "UnsupportedError",
    "UnsupportedOperator",
    "UnsupportedTensor",
    "XlaDynamoError",
    "add_step_closure",
    "bisect_passes",
    "call_jax",
    "compile",
    "compile_graph",
    "device",
    "device_count",
    "devices",
    "distributed_checkpoint",
    "eager_mode",
    "explain",
    "get_memory_info",
    "get_rng_state",
    "is_eager_mode",
    "is_master_ordinal",
    "jax",
    "launch",
    "lowers",
    "manual_seed",
    "mark_step",
    "metrics",
    "openxla",
    "optimizer_step",
    "precompile",
    "real_devices",
    "refreeze",
    "register_pass",
    "runtime",
    "save",
    "set_rng_state",
    "spawn",
    "spmd",
    "stablehlo",
    "step",
    "sync",
    "to_dlpack",
    "train_step",
    "unlazy",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
]


# A function and not a row of the table: who only looks at the names of this package, as `help` and
# `import *` do, must not claim the one place that torch has for further devices.
def device(index: int | None = None) -> Any:
    """The lazy device, `torch.device("xla", 0)`: tensors that are made there are computed by XLA.

    The first call makes the device known to torch.

    Raises:
        RuntimeError: another index than 0, since there is one device.
        XlaDynamoError: another package has taken torch's place for further devices.
    """
    from xla_dynamo.lazy import registration

    return registration.device(index)


_MODULES = ("distributed_checkpoint", "jax", "metrics", "runtime", "spmd", "stablehlo")


def __getattr__(name: str) -> Any:
    if name not in (*_LAZY, *_MODULES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"xla_dynamo.{name}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "lowerings"]
