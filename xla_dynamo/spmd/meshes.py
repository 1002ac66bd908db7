"""Meshes over all devices: of one axis, or of a fast network inside a slow one; the global mesh."""

import math
from collections.abc import Sequence

import jax
import numpy as np

from xla_dynamo.errors import ShardingError
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import topology
from xla_dynamo.runtime.jaxlib_private import numbered_devices
from xla_dynamo.runtime.mesh import Mesh


class _GlobalMesh:
    def __init__(self) -> None:
        self.mesh: Mesh | None = None


_global = kept(_GlobalMesh)


class HybridMesh(Mesh):
    """A mesh over slices: devices that a fast network connects, and slices that a slower one does.

    Each axis has the size of both its parts together, the slices' part being the major one. Give
    the axes in the order of their traffic, the one with the most last: on TPUs, neighbours along it
    are neighbours on the chips' network.

    A CPU has one slice however many devices it appears as. To try such a mesh there, its devices
    are taken for as many slices as are asked for, in the order of their ids.

    Attributes:
        ici_mesh_shape: the sizes inside a slice (TPUs' inter-chip interconnect).
        dcn_mesh_shape: the sizes across slices (the data center's network).

    >>> HybridMesh(ici_mesh_shape=(1, 4), dcn_mesh_shape=(2, 1), axis_names=("data", "model"))
    Mesh(data=2, model=4)
    """

    __slots__ = ("dcn_mesh_shape", "ici_mesh_shape")

    def __init__(
        self,
        *,
        ici_mesh_shape: Sequence[int],
        dcn_mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
    ) -> None:
        """Take the sizes inside a slice, those across slices (1 unless given), and names.

        Raises:
            ShardingError: the shapes are not of one length, or not those of the devices.
        """
        self.ici_mesh_shape = tuple(int(n) for n in ici_mesh_shape)
        given = [1] * len(self.ici_mesh_shape) if dcn_mesh_shape is None else dcn_mesh_shape
        self.dcn_mesh_shape = tuple(int(n) for n in given)
        if len(self.ici_mesh_shape) != len(self.dcn_mesh_shape):
            raise ShardingError(
                f"ici_mesh_shape {self.ici_mesh_shape} and dcn_mesh_shape {self.dcn_mesh_shape} "
                "have a size for each axis of the mesh: give 1 where an axis is on one network only"
            )
        inside = [_arranged(ids, self.ici_mesh_shape) for ids in self._slices()]
        pairs = list(zip(self.dcn_mesh_shape, self.ici_mesh_shape, strict=True))
        grid = np.stack(inside).reshape(*self.dcn_mesh_shape, *self.ici_mesh_shape)
        # From (outer axes, inner axes) to (outer axis 0, inner axis 0, outer axis 1, ...).
        order = [i + inner for i in range(len(pairs)) for inner in (0, len(pairs))]
        ids, shape = grid.transpose(order).flatten(), [math.prod(pair) for pair in pairs]
        super().__init__(ids, shape, axis_names)

    def _slices(self) -> list[list[jax.Device]]:
        """The devices of each slice."""
        count, size = math.prod(self.dcn_mesh_shape), math.prod(self.ici_mesh_shape)
        found = topology.slices()
        if len(found) == 1 and found[0][0].platform == "cpu" and len(found[0]) == count * size:
            every = found[0]
            found = [every[i : i + size] for i in range(0, len(every), size)]
        if len(found) != count or any(len(devices) != size for devices in found):
            raise ShardingError(
                f"ici_mesh_shape {self.ici_mesh_shape} and dcn_mesh_shape {self.dcn_mesh_shape} "
                f"are {count} slices of {size} devices, and there are slices of "
                f"{[len(devices) for devices in found]} devices"
            )
        return found


def _arranged(devices: list[jax.Device], shape: tuple[int, ...]) -> np.ndarray:
    """The ids of a slice's devices in a grid, as JAX lays it over the slice's own network."""
    from jax.experimental.mesh_utils import create_device_mesh  # not before it is needed

    try:
        grid = create_device_mesh(shape, devices)
    except (NotImplementedError, ValueError) as error:
        raise ShardingError(f"no mesh of {shape} lies over {devices}: {error}") from error
    every = numbered_devices(devices[0].client)
    numbers = {device.id: number for number, device in enumerate(every)}
    return np.vectorize(lambda device: numbers[device.id], otypes=[int])(grid)


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """A mesh of one axis over all devices of the platform that `runtime.device_type()` says.

    Args:
        axis_name: the axis's name; "axis_0" unless given.
    """
    count = topology.global_runtime_device_count()
    return Mesh(range(count), (count,), None if axis_name is None else (axis_name,))


def set_global_mesh(mesh: Mesh | None) -> None:
    """Set the mesh that this process's recipes take unless they are given one; None takes it back.

    It holds for all threads, as in PyTorch/XLA.

    Raises:
        ShardingError: it is no mesh.
    """
    if mesh is not None and not isinstance(mesh, Mesh):
        raise ShardingError(f"the global mesh is an xla_dynamo.spmd.Mesh, and not {mesh!r}")
    _global.mesh = mesh


def get_global_mesh() -> Mesh | None:
    """The mesh that `set_global_mesh` set; None before."""
    return _global.mesh
