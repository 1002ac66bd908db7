"""The variants of a graph: what each of its executables is for."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xla_dynamo.graphs.bucket_choice import Choice
from xla_dynamo.graphs.sizes import size_key
from xla_dynamo.graphs.source_graph import GraphFacts
from xla_dynamo.runtime.mesh import Sharding


class VariantKey(NamedTuple):
    """What one executable of a graph is for.

    Attributes:
        sizes: the numbers of a call, and the sizes and strides of its tensors, behind them the
            storage offsets that matter; () for a graph of which one program serves all calls. With
            bounds, the numbers that are no sizes.
        shardings: of the inputs that are sharded, by number.
        bounds: the bounds of the dynamic dimensions; None for an executable of exact sizes.
    """

    sizes: tuple[Any, ...] = ()
    shardings: tuple[tuple[int, Sharding], ...] = ()
    bounds: Choice | None = None


def exact_variant(
    facts: GraphFacts, args: Sequence[Any], shardings: Mapping[int, Sharding]
) -> VariantKey:
    """The key of the executable for exactly the sizes of a call."""
    if facts.is_static:
        return VariantKey((), tuple(shardings.items()))
    offsets = [args[index].storage_offset() for index in facts.offset_inputs]
    return VariantKey((*size_key(args), *offsets), tuple(shardings.items()))


def bounded_variant(choice: Choice, args: Sequence[Any]) -> VariantKey:
    """The key of the executable for all sizes of a bucket."""
    numbers = tuple(repr(a) for a in args if isinstance(a, float | complex))
    return VariantKey(numbers, bounds=choice)
