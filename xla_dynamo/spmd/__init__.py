"""Sharding: meshes of devices, and tensors divided over them (PyTorch/XLA's `spmd`)."""

from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.marking import (
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    sharding_of,
)
from xla_dynamo.spmd.meshes import HybridMesh, get_1d_mesh, get_global_mesh, set_global_mesh
from xla_dynamo.spmd.sharding_spec import ShardingSpec
from xla_dynamo.spmd.visualize import (
    get_sharding_text,
    visualize_sharding,
    visualize_tensor_sharding,
)

__all__ = [
    "HybridMesh",
    "Mesh",
    "ShardingSpec",
    "clear_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "get_sharding_text",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "sharding_of",
    "visualize_sharding",
    "visualize_tensor_sharding",
]
