"""What PyTorch/XLA's sharded tensors have and ours do not: attributes of tensors with a mark.

A sharded tensor is an ordinary one here, a parameter included. So the attributes are those of
`torch.Tensor`: a tensor without a mark has none of them, as `hasattr` says. Once there are marks in
the process, a pending tensor without one is computed when somebody asks.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import EllipsisType
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Shard

from xla_dynamo import spmd
from xla_dynamo.lazy import memory
from xla_dynamo.lazy.contents import cell_of, shows_all
from xla_dynamo.runtime import marks, topology
from xla_dynamo.runtime.clients import placement_over, tensors_on
from xla_dynamo.runtime.hlo_shardings import sharding_text
from xla_dynamo.runtime.mesh import Sharding, Tiling
from xla_dynamo.torch_private import DisableTorchDispatch
from xla_dynamo.torch_xla.forms.meshes import Mesh, ShardingType, sharding_type_of

_GIVEN = "_xla_partition_spec"  # beside the sharding that it was given for


@dataclasses.dataclass
class XLAShard:
    """A device's part of a tensor, as it was when it was asked for.

    Attributes:
        data: its elements, on the CPU, behind which zeros fill up a part that is smaller than the
            others.
        indices: where it lies in the tensor: a slice for each dimension, `...` for all of it.
        shard_device: the device, as "CPU:0".
        replica_id: its number among the devices that have the same part; of a tensor that all
            devices have, the device's number.
    """

    data: torch.Tensor
    indices: EllipsisType | list[slice]
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The elements without the zeros behind them."""
        return self.data[self._inside()]

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        self.data[self._inside()] = t

    def _inside(self) -> Any:
        if isinstance(self.indices, EllipsisType):
            return ...
        return tuple(slice(0, part.stop - part.start) for part in self.indices)


def sharding_now(tensor: torch.Tensor) -> Sharding | None:
    """The mark of a tensor, or how its elements lie if they are computed; nothing is computed."""
    found = marks.sharding_of(tensor)
    if found is not None or tensor.device.type != "xla":
        return found
    value = cell_of(tensor).value
    is_there = value.record is None and value.buffer is not None and shows_all(tensor)
    return memory.sharding_of(value) if is_there else None


class _Marked(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and sharding_now(value) is not None

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls


class XLAShardedTensor(metaclass=_Marked):
    """What tensors with a mark are instances of."""

    def __new__(  # type: ignore[misc]
        cls,
        elem: torch.Tensor,
        mesh_shape: Sequence[int] | None = None,
        partition_spec: Any = None,
        *args: Any,
        requires_grad: bool = False,
    ) -> torch.Tensor:
        """The tensor itself, marked if both a mesh's shape and a partition spec are given."""
        if requires_grad:
            elem.requires_grad_()
        return wrapped(elem, mesh_shape, partition_spec)


def wrapped(tensor: torch.Tensor, mesh_shape: Any, partition_spec: Any) -> torch.Tensor:
    """The tensor itself, marked over all devices if a mesh's shape and a partition spec are given.

    A tensor that has the mark already stays as it is.
    """
    if mesh_shape is not None and partition_spec is not None:
        count = topology.global_runtime_device_count()
        mesh, found = Mesh(range(count), mesh_shape), sharding_now(tensor)
        if found is None or _numbered(found) != _numbered_spec(mesh, partition_spec):
            mark(tensor, mesh, partition_spec)
    return tensor


def mark(tensor: torch.Tensor, mesh: spmd.Mesh, partition_spec: Any) -> torch.Tensor:
    """`xla_dynamo.spmd.mark_sharding`; the tensor remembers the partition spec as it was given."""
    marked = spmd.mark_sharding(tensor, mesh, partition_spec)
    if not torch.compiler.is_compiling() and marked is tensor:
        setattr(tensor, _GIVEN, (marks.sharding_of(tensor), tuple(partition_spec)))
    return marked


def _numbered(sharding: Sharding) -> tuple[Any, ...]:
    """The partition spec of a sharding, by the numbers of the axes."""
    names = sharding.mesh.axis_names
    numbers = [tuple(names.index(name) for name in axes) for axes in sharding.axes]
    return tuple(n if len(n) > 1 else n[0] if n else None for n in numbers)


def _numbered_spec(mesh: spmd.Mesh, spec: Any) -> tuple[Any, ...]:
    return _numbered(spmd.ShardingSpec(mesh, tuple(spec)).sharding())


# --- what tensors with a mark have ---------------------------------------------------------------


def _partition_spec(tensor: torch.Tensor, sharding: Sharding) -> tuple[Any, ...]:
    given = getattr(tensor, _GIVEN, None)
    return given[1] if given is not None and given[0] == sharding else _numbered(sharding)


def _placements(tensor: torch.Tensor, sharding: Sharding) -> Any:
    return spmd.convert_partition_spec_to_placements(sharding.axes, sharding.mesh)


def _local_shards(tensor: torch.Tensor, sharding: Sharding) -> list[XLAShard]:
    """The parts of the devices of this process, in the order of their ids."""
    tiling, kind = sharding.tiling(), sharding_type_of(sharding)
    slices = tiling.slices(tensor.shape)
    data = _parts(tensor.detach(), sharding, tiling, slices)
    seen: dict[tuple[int, ...], int] = {}
    replicas = {}
    for place in sorted(range(len(slices)), key=lambda i: sharding.mesh.ids[i]):
        shard = tiling.shards[place]
        replicas[place] = seen.get(shard, 0)
        seen[shard] = replicas[place] + 1
    shards = []
    for place in sorted(data, key=lambda i: sharding.mesh.ids[i]):
        device = sharding.mesh.ids[place]
        indices = [slice(part.start, part.stop, 1) for part in slices[place]]
        whole = kind is ShardingType.REPLICATED
        shards.append(
            XLAShard(
                data[place],
                ... if whole else indices,
                f"{topology.device_type()}:{device}",
                device if whole else replicas[place],
            )
        )
    return shards


def _parts(
    tensor: torch.Tensor, sharding: Sharding, tiling: Tiling, slices: Sequence[tuple[slice, ...]]
) -> dict[int, torch.Tensor]:
    """Copies of the parts on the CPU, by the places of this process's devices in the mesh."""
    own = placement_over(sharding.mesh, memory.placement()).own
    tensors = tensors_on(tensor.device.type)
    if tensors is not None and tensors.sharding_of(tensor) == sharding and not tiling.is_whole:
        return {place: tensors.shard_of(tensor, place) for place in own}
    elements = tensor.cpu()  # it lies in one place: it does not shard evenly, or not at all
    size = [-(-n // c) for n, c in zip(tensor.shape, sharding.counts(), strict=True)]
    found = {}
    for place in own:
        part = elements[slices[place]]
        found[place] = part.new_zeros(size)
        found[place][tuple(slice(0, n) for n in part.shape)] = part
    return found


def _load_local_shards_(tensor: torch.Tensor, sharding: Sharding) -> Callable[..., None]:
    def load_local_shards_(shards: Sequence[XLAShard]) -> None:
        """Give the tensor the elements of all parts of this process's devices.

        Raises:
            RuntimeError: parts are missing, or have other shapes; all devices have all of it.
        """
        if sharding_type_of(sharding) is ShardingType.REPLICATED:
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} has no parts to load, since all devices "
                "have all of it: use copy_"
            )
        by_device = {shard.shard_device: shard.data for shard in shards}
        known = _local_shards(tensor, sharding)
        names = [shard.shard_device for shard in known]
        if len(shards) != len(names) or set(by_device) != set(names):
            raise RuntimeError(f"parts of the devices {names} are loaded, unlike {[*by_device]}")
        for shard in known:
            given = by_device[shard.shard_device]
            if given.shape != shard.data.shape:
                raise RuntimeError(
                    f"the part of {shard.shard_device} has the shape {tuple(shard.data.shape)}, "
                    f"unlike {tuple(given.shape)}"
                )
        tensors = tensors_on(tensor.device.type)
        own = {}
        for shard in known:
            shard.data = by_device[shard.shard_device].detach().to("cpu", tensor.dtype)
            assert isinstance(shard.indices, list)
            own[torch.Size(part.start for part in shard.indices)] = shard
        if tensors is not None and tensors.sharding_of(tensor) == sharding:
            tensors.put_shards(tensor, {at: shard.data for at, shard in own.items()})
            return
        whole = tensor.detach().cpu()
        for shard in own.values():
            whole[tuple(shard.indices)] = shard.unpadded_data  # type: ignore[arg-type]
        with torch.no_grad():
            tensor.copy_(whole)

    return load_local_shards_


def _redistribute(tensor: torch.Tensor, sharding: Sharding) -> Callable[..., torch.Tensor]:
    def redistribute(
        device_mesh: Any, placements: Sequence[Any], *, async_op: bool = False
    ) -> torch.Tensor:
        """Shard the tensor as placements say, or a copy of it if `async_op`.

        Raises:
            ValueError: there is not one placement for each axis of the mesh.
            IndexError: a placement shards a dimension that the tensor does not have.
            NotImplementedError: a placement is partial.
        """
        mesh = spmd.mesh_from_device_mesh(device_mesh)
        if len(placements) != len(mesh.mesh_shape):
            raise ValueError(
                f"there are {len(placements)} placements for {len(mesh.mesh_shape)} axes of {mesh}"
            )
        for placement in placements:
            if isinstance(placement, Partial):
                raise NotImplementedError(
                    f"{placement}: a marked tensor has its values, and no terms of sums"
                )
            if isinstance(placement, Shard) and not -tensor.dim() <= placement.dim < tensor.dim():
                raise IndexError(
                    f"{placement} shards a dimension that a tensor of {tensor.dim()} does not have"
                )
        spec = spmd.convert_placements_to_partition_spec(placements, tensor.dim())
        return mark(tensor.clone() if async_op else tensor, mesh, spec)

    return redistribute


def _nothing(tensor: torch.Tensor, sharding: Sharding) -> Callable[[], None]:
    """Nothing is kept that would have to be forgotten."""
    return lambda: None


class _Attribute:
    """An attribute of tensors with a mark, and of no others."""

    def __init__(self, name: str, get: Callable[[torch.Tensor, Sharding], Any]) -> None:
        self._name, self._get = name, get
        self.__doc__ = get.__doc__

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self
        if self._name in vars(tensor):
            return vars(tensor)[self._name]
        sharding = None
        if not isinstance(tensor, DTensor):
            sharding = sharding_now(tensor)
            if sharding is None and tensor.device.type == "xla" and marks.were_ever_there():
                sharding = spmd.sharding_of(tensor)  # computed, if it is pending
        if sharding is None:
            name = type(tensor).__name__
            raise AttributeError(f"{name!r} object has no attribute {self._name!r}")
        return self._get(tensor, sharding)

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        vars(tensor)[self._name] = value


_ATTRIBUTES: dict[str, Callable[[torch.Tensor, Sharding], Any]] = {
    "invalidate_spec_cache": _nothing,
    "load_local_shards_": _load_local_shards_,
    "local_shards": _local_shards,
    "mesh_shape": lambda _, sharding: sharding.mesh.mesh_shape,
    "partition_spec": _partition_spec,
    "placements": _placements,
    "redistribute": _redistribute,
    "sharding_spec": lambda _, sharding: sharding_text(sharding),
    "sharding_type": lambda _, sharding: sharding_type_of(sharding),
}


def _global_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, of the device 'xla'."""
    if tensor.device.type != "xla":
        raise AttributeError(f"{type(tensor).__name__!r} object has no attribute 'global_tensor'")
    return tensor


# Among the changes in torch for all threads: see `torch_patches`.
torch.Tensor.global_tensor = property(_global_tensor)  # type: ignore[attr-defined]
for _name, _get in _ATTRIBUTES.items():
    setattr(torch.Tensor, _name, _Attribute(_name, _get))


@contextmanager
def no_dispatch() -> Iterator[None]:
    """A block in which subclasses of tensors do not see operators."""
    with DisableTorchDispatch():
        yield
