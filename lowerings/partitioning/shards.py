"""How the values of a program are sharded while its operations become those of one device."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.shardings import axes_of_attribute, shardings_of
from xla_dynamo.lowerings.builders.values import Value, shape_of

Axes: TypeAlias = tuple[tuple[str, ...], ...]


class NotKnown(Exception):
    """Shards of an operation are not known to be computed from shards of its operands."""


def require(condition: bool, op: ir.Operation) -> None:
    """Raise NotKnown for an operation unless a condition holds."""
    if not condition:
        raise NotKnown(f"{op.name}: {op}")


@dataclasses.dataclass(frozen=True, slots=True)
class Partial:
    """A value of which each device has a part: all of them, reduced, are the value.

    Attributes:
        axes: those along which the devices have different parts.
        reduction: the operation that reduces them, as "stablehlo.add".
    """

    axes: frozenset[str]
    reduction: str


def known_axes(sharding: ir.Attribute) -> Axes:
    """The axes that shard each dimension, by an attribute.

    Raises:
        NotKnown: parts of an axis do.
    """
    axes = axes_of_attribute(sharding)
    if axes is None:
        raise NotKnown(f"parts of an axis: {sharding}")
    return axes


class Shards:
    """The axes of a mesh that shard each value.

    Attributes:
        sizes: the axes by name, in their order, with their sizes.
        gathers: whether a device may gather whole operands.
        partial: the values of which each device has a part.
        reduced: those of which each device has the whole, where parts are expected.
    """

    def __init__(self, sizes: Mapping[str, int], gathers: bool = False) -> None:
        """Begin with values that are whole on each device."""
        self.sizes, self.gathers = dict(sizes), gathers
        self.partial: dict[Value, Partial] = {}
        self.reduced: set[Value] = set()
        self._axes: dict[Value, Axes] = {}
        self._shapes: dict[Value, tuple[int, ...]] = {}

    def axes(self, value: Value) -> Axes:
        """The axes that shard each dimension of a value."""
        return self._axes.get(value, ((),) * len(shape_of(value)))

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of the whole value."""
        return self._shapes.get(value, shape_of(value))

    def is_sharded(self, value: Value) -> bool:
        """Whether a device has less than the whole of a value."""
        return any(self._axes.get(value, ()))

    def sharded_dims(self, value: Value) -> list[int]:
        """The dimensions that are sharded."""
        return [dim for dim, names in enumerate(self.axes(value)) if names]

    def count(self, names: Sequence[str]) -> int:
        """Into how many shards these axes divide a dimension."""
        return math.prod(self.sizes[name] for name in names)

    def local(self, shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
        """The shape of a shard.

        Raises:
            NotKnown: the shards are not of one size.
        """
        counts = [self.count(names) for names in axes]
        if any(n % count for n, count in zip(shape, counts, strict=True)):
            raise NotKnown(f"{shape} over {axes}")
        return tuple(n // count for n, count in zip(shape, counts, strict=True))

    def local_type(self, value: Value, axes: Axes) -> ir.RankedTensorType:
        """The type of a shard of a value that is whole."""
        return ir.RankedTensorType.get(self.local(shape_of(value), axes), value.type.element_type)

    def shard(self, value: Value, axes: Axes) -> None:
        """Let a value that is whole be its shard."""
        type_ = self.local_type(value, axes)
        self.note(value, axes, shape_of(value))
        value.set_type(type_)

    def note(self, value: Value, axes: Axes, shape: Sequence[int]) -> None:
        """Take a value, which is a shard already, for one of a whole of this shape."""
        self._axes[value], self._shapes[value] = axes, tuple(shape)

    def note_parts(
        self, results: Sequence[Value], summed: Sequence[Sequence[str]], reduction: str
    ) -> None:
        """Take values for parts, if the axes of the dimensions that were summed are any."""
        names = frozenset(name for of_dim in summed for name in of_dim)
        if names:
            self.partial.update(dict.fromkeys(results, Partial(names, reduction)))

    def axes_of_results(self, op: ir.Operation) -> list[Axes]:
        """The axes that shard each result of an operation, by its attribute.

        Raises:
            NotKnown: parts of an axis do.
        """
        given = shardings_of(op)
        if not given:
            return [((),) * len(shape_of(result)) for result in op.results]
        return list(map(known_axes, given))

    def groups(self, names: Sequence[str]) -> np.ndarray:
        """The devices, in groups along axes: i64[groups, size], in the order of the shards."""
        order = [*self.sizes]
        devices = np.arange(math.prod(self.sizes.values())).reshape([*self.sizes.values()])
        places = [order.index(name) for name in names]
        others = [i for i in range(len(order)) if i not in places]
        return devices.transpose([*others, *places]).reshape(-1, self.count(names))

    def places(self, names: Sequence[str]) -> np.ndarray:
        """For each device, the number of its shard along axes."""
        groups = self.groups(names)
        found = np.empty(groups.size, dtype=np.int64)
        found[groups] = np.arange(groups.shape[1])
        return found
