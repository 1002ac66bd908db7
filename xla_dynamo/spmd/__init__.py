"""Sharding: meshes of devices, and tensors sharded over them (PyTorch/XLA's `spmd`)."""

import importlib
from typing import Any

from xla_dynamo.runtime.mesh import UNCONSTRAINED, Mesh
from xla_dynamo.spmd.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    collective_broadcast,
    collective_permute,
    reduce_scatter,
)
from xla_dynamo.spmd.manual_regions import (
    disable_manual_sharding,
    enable_manual_sharding,
    shard_map,
)
from xla_dynamo.spmd.marking import (
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    sharding_of,
)
from xla_dynamo.spmd.meshes import HybridMesh, get_1d_mesh, get_global_mesh, set_global_mesh
from xla_dynamo.spmd.sharding_spec import ShardingSpec

# Looked up at first use: torch.distributed.tensor takes two seconds to import, and pictures need
# rich, which programs do without.
_LAZY = {
    "auto_policy": "xla_dynamo.spmd.auto_sharding",
    "auto_sharding_reports": "xla_dynamo.spmd.auto_sharding",
    "convert_partition_spec_to_placements": "xla_dynamo.spmd.placements",
    "convert_placements_to_partition_spec": "xla_dynamo.spmd.placements",
    "from_dtensor": "xla_dynamo.spmd.dtensors",
    "get_sharding_text": "xla_dynamo.spmd.visualize",
    "mesh_from_device_mesh": "xla_dynamo.spmd.placements",
    "sharding_code": "xla_dynamo.spmd.auto_sharding",
    "to_device_mesh": "xla_dynamo.spmd.placements",
    "to_dtensor": "xla_dynamo.spmd.dtensors",
    "visualize_sharding": "xla_dynamo.spmd.visualize",
    "visualize_tensor_sharding": "xla_dynamo.spmd.visualize",
    "xla_distribute_module": "xla_dynamo.spmd.dtensors",
    "xla_distribute_tensor": "xla_dynamo.spmd.dtensors",
}

__all__ = [
    "UNCONSTRAINED",
    "HybridMesh",
    "Mesh",
    "ShardingSpec",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "auto_policy",
    "auto_sharding_reports",
    "axis_index",
    "clear_sharding",
    "collective_broadcast",
    "collective_permute",
    "convert_partition_spec_to_placements",
    "convert_placements_to_partition_spec",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "from_dtensor",
    "get_1d_mesh",
    "get_global_mesh",
    "get_sharding_text",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "mesh_from_device_mesh",
    "reduce_scatter",
    "set_global_mesh",
    "shard_map",
    "sharding_code",
    "sharding_of",
    "to_device_mesh",
    "to_dtensor",
    "visualize_sharding",
    "visualize_tensor_sharding",
    "xla_distribute_module",
    "xla_distribute_tensor",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = found  # Dynamo reads it there, not here
    return found


def __dir__() -> list[str]:
    return __all__
