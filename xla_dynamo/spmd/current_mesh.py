"""The mesh of the manual region that is being traced, which collectives need not name.

Dynamo calls these functions while it traces, and does not trace them: to change what is outside is
forbidden in the functions that checkpointing and loops trace.
"""

import threading
import weakref
from typing import Any

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.meshes import get_global_mesh
from xla_dynamo.torch_private import TracingContext


class _Region(threading.local):
    """The region that a thread has entered; regions are not nested.

    The trace that it belongs to is noted, too, or None: a trace may end early. Unlike the global
    mesh, a region belongs to a thread: others may record or trace regions of their own meanwhile.
    """

    entered: tuple[Any, Mesh] | None = None


_region = _Region()


@torch.compiler.assume_constant_result
def enter(mesh: Mesh) -> None:
    """Note that what is traced now is in a manual region of a mesh."""
    _region.entered = _trace(), mesh


@torch.compiler.assume_constant_result
def leave() -> None:
    """Note that the region ends."""
    _region.entered = None


@torch.compiler.assume_constant_result
def current_mesh() -> Mesh | None:
    """The mesh of the region around; None outside of `shard_map`."""
    entered = _region.entered
    if entered is None or entered[0] != _trace():
        return None
    return entered[1]


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
