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
    "generate": "xla_dynamo.generation",
    "openxla": "xla_dynamo.backend",
    "precompile": "xla_dynamo.execution.precompile",
    "profile": "xla_dynamo.reports.profile",
    "refreeze": "xla_dynamo.memory.changes",
    "train_step": "xla_dynamo.training.train_step",
    "add_step_closure": "xla_dynamo.lazy.step_closures",
    "compile": "xla_dynamo.lazy.steps",
    "eager_mode": "xla_dynamo.lazy.steps",
    "get_memory_info": "xla_dynamo.lazy.steps",
    "is_eager_mode": "xla_dynamo.lazy.steps",
    "mark_step": "xla_dynamo.lazy.steps",
    "step": "xla_dynamo.lazy.steps",
    "sync": "xla_dynamo.lazy.steps",
    "unlazy": "xla_dynamo.lazy.steps",
    "wait_device_ops": "xla_dynamo.lazy.step_closures",
    "MpDeviceLoader": "xla_dynamo.lazy.loaders",
    "to_dlpack": "xla_dynamo.lazy.transfers",
    "ParallelLoader": "xla_dynamo.lazy.loaders",
    "device_count": "xla_dynamo.lazy.devices",
    "devices": "xla_dynamo.lazy.devices",
    "real_devices": "xla_dynamo.lazy.devices",
    "xla_device": "xla_dynamo.lazy.devices",
    "xla_device_hw": "xla_dynamo.lazy.devices",
    "get_rng_state": "xla_dynamo.lazy.device_module",
    "manual_seed": "xla_dynamo.lazy.device_module",
    "set_rng_state": "xla_dynamo.lazy.device_module",
    "save": "xla_dynamo.lazy.saving",
    "all_gather": "xla_dynamo.distributed.collectives",
    "all_reduce": "xla_dynamo.distributed.collectives",
    "all_to_all": "xla_dynamo.distributed.collectives",
    "collective_broadcast": "xla_dynamo.distributed.collectives",
    "collective_permute": "xla_dynamo.distributed.collectives",
    "reduce_scatter": "xla_dynamo.distributed.collectives",
    "broadcast_master_param": "xla_dynamo.distributed.ordinals",
    "do_on_ordinals": "xla_dynamo.distributed.ordinals",
    "get_local_ordinal": "xla_dynamo.distributed.ordinals",
    "get_ordinal": "xla_dynamo.distributed.ordinals",
    "is_master_ordinal": "xla_dynamo.distributed.ordinals",
    "master_print": "xla_dynamo.distributed.ordinals",
    "mesh_reduce": "xla_dynamo.distributed.ordinals",
    "optimizer_step": "xla_dynamo.distributed.ordinals",
    "reduce_gradients": "xla_dynamo.distributed.ordinals",
    "rendezvous": "xla_dynamo.distributed.ordinals",
    "xrt_world_size": "xla_dynamo.distributed.ordinals",
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
    "all_gather",
    "all_reduce",
    "all_to_all",
    "bisect_passes",
    "broadcast_master_param",
    "call_jax",
    "collective_broadcast",
    "collective_permute",
    "compile",
    "compile_graph",
    "device",
    "device_count",
    "devices",
    "distributed_checkpoint",
    "do_on_ordinals",
    "eager_mode",
    "explain",
    "generate",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "is_eager_mode",
    "is_master_ordinal",
    "jax",
    "launch",
    "lowers",
    "manual_seed",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "metrics",
    "openxla",
    "optimizer_step",
    "precompile",
    "profile",
    "real_devices",
    "reduce_gradients",
    "reduce_scatter",
    "refreeze",
    "register_pass",
    "rendezvous",
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
    "xrt_world_size",
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
