"""Sharding: meshes of devices, and tensors divided over them (PyTorch/XLA's `spmd`)."""

from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.marking import (
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    sharding_of,
)

__all__ = [
    "Mesh",
    "clear_sharding",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "sharding_of",
]
