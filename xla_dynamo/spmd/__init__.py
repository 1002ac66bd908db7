"""Sharding: meshes of devices, and tensors divided over them (PyTorch/XLA's `spmd`)."""

from xla_dynamo.runtime.mesh import Mesh
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

__all__ = [
    "Mesh",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "axis_index",
    "clear_sharding",
    "collective_broadcast",
    "collective_permute",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "reduce_scatter",
    "shard_map",
    "sharding_of",
]
