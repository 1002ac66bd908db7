"""What a call needs to know of a graph's dynamic sizes: where its inputs have them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from xla_dynamo.graphs.sizes import number_at
from xla_dynamo.lowerings.bounded.extents import Extent
from xla_dynamo.torch_private import sizes_seen_to_vary


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSizes:
    """The shape and strides of a tensor of a graph, of extents.

    Attributes:
        shape: the extent of each dimension.
        stride: its stride.
    """

    shape: tuple[Extent, ...]
    stride: tuple[Extent, ...]

    @property
    def is_dynamic(self) -> bool:
        """Whether a size or a stride depends on a symbol."""
        return any(e.number is None for e in (*self.shape, *self.stride))


@dataclasses.dataclass(frozen=True, slots=True)
class CallSizes:
    """The symbols of a graph, with one entry for each in each attribute but the last.

    Attributes:
        names: the name.
        dims: which dimension of an input has it first; None where inputs are the number alone.
        are_batches: whether it is the first dimension of some input, beside others.
        seen_to_vary: whether it is known to vary, not only allowed to.
        traced: its value where the graph was traced. A size that depends on values, such as the
            number of true elements of a mask, had none: each such size has a negative number of
            its own here, so that no two count as equal.
        ranges: the least and the largest number that it may be.
        sources: the number of the input, and its dimension, that a call reads it from.
        told: the inputs of dynamic sizes, by number, with what their sizes are. Those of static
            sizes are as Dynamo's guards have them.
    """

    names: tuple[str, ...]
    dims: tuple[int | None, ...]
    are_batches: tuple[bool, ...]
    seen_to_vary: tuple[bool, ...]
    traced: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    sources: tuple[tuple[int, int | None], ...]
    told: tuple[tuple[int, TensorSizes | Extent], ...]

    def values(self, args: Sequence[Any]) -> tuple[int, ...] | None:
        """The symbols' values in a call; None if its inputs are not what was traced."""
        values = self.read(args)
        for index, known in self.told:
            given = args[index]
            if isinstance(known, Extent):
                if known.at(values) != given:
                    return None
            else:
                shape = tuple(e.at(values) for e in known.shape)
                stride = tuple(e.at(values) for e in known.stride)
                if (tuple(given.shape), given.stride()) != (shape, stride):
                    return None
        return values

    def as_in(self, fakes: Sequence[Any]) -> "CallSizes":
        """The same for another trace, which has these fake values for inputs."""
        sizes = [size.node for size in self.read(fakes)]
        seen = (size.expr in sizes_seen_to_vary(size.shape_env) for size in sizes)
        traced = (size.hint for size in sizes)
        return dataclasses.replace(self, traced=tuple(traced), seen_to_vary=tuple(seen))

    def read(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What a call's inputs have where the symbols are read from."""
        return tuple(number_at(args, index, dim) for index, dim in self.sources)
