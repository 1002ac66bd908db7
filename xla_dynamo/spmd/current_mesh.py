"""The mesh of the manual region that is being traced, which collectives need not name.

Dynamo calls these functions while it traces, and does not trace them: to change what is outside is
forbidden in the functions that checkpointing and loops trace.
"""

import weakref
from typing import Any

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.meshes import get_global_mesh
from xla_dynamo.torch_private import TracingContext

# Regions are not nested. The trace that an entered one belongs to, or None; a trace may end early.
_entered: tuple[Any, Mesh] | None = None


@torch.compiler.assume_constant_result
def enter(mesh: Mesh) -> None:
    """Note that what is traced now is in a manual region of a mesh."""
    global _entered
    _entered = _trace(), mesh


@torch.compiler.assume_constant_result
def leave() -> None:
    """Note that the region ends."""
    global _entered
    _entered = None


@torch.compiler.assume_constant_result
def current_mesh() -> Mesh | None:
    """The mesh of the region around; None outside of `shard_map`."""
    if _entered is None or _entered[0] != _trace():
        return None
    return _entered[1]


def mesh_or_current(mesh: Mesh | None) -> Mesh:
    """A mesh, or else that of the region around, or else the global mesh.

    Raises:
        ShardingError: there is none of these.
    """
    found = current_mesh() if mesh is None else mesh
    if found is None:
        found = get_global_mesh()
    if found is None:
        raise ShardingError(
            "which mesh? Outside of spmd.shard_map, manual regions and collectives take it as "
            "mesh=…, or use the global mesh: call spmd.set_global_mesh first"
        )
    return found


def _trace() -> Any:
    context = TracingContext.try_get()
    return None if context is None else weakref.ref(context)
