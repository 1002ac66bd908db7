"""Operations that move elements, on shards: each function returns the axes of the results."""

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.values import shape_of
from xla_dynamo.lowerings.partitioning.shards import Axes, Shards, require
from xla_dynamo.lowerings.passes.permuted_operations import integer_array, integers


def _broadcast_in_dim(shards: Shards, op: Any, results: Sequence[Axes]) -> Sequence[Axes]:
    (x,), whole = op.operands, shards.shape(op.results[0])
    dims = integers(op, "broadcast_dimensions")
    for names, n, dim in zip(shards.axes(x), shards.shape(x), dims, strict=True):
        require(names == results[0][dim] if n == whole[dim] else not names, op)
    return results


def _reshape(shards: Shards, op: Any, results: Sequence[Axes]) -> Sequence[Axes]:
    """Each shard is in the same place of the row-major order: by equal blocks of leading sizes."""
    (x,), (result,) = op.operands, op.results
    given = _strides_of_axes(shards, shards.shape(x), shards.axes(x), op)
    require(given == _strides_of_axes(shards, shards.shape(result), results[0], op), op)
    return results


def _strides_of_axes(
    shards: Shards, shape: Sequence[int], axes: Axes, op: Any
) -> dict[str, tuple[int, int]]:
    """Of each axis, how many elements lie between neighbouring shards, and how many wrap around.

    The numbers of a device along the axes are digits of the place of its elements.
    """
    found, behind = {}, 1
    for n, names in zip(reversed(shape), reversed(axes), strict=True):
        inner = n
        for name in names:
            require(inner % shards.sizes[name] == 0, op)
            inner //= shards.sizes[name]
            found[name] = behind * inner, behind * inner * shards.sizes[name]
        behind *= n
    return found


def _transpose(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    axes = shards.axes(op.operands[0])
    return [tuple(axes[d] for d in integers(op, "permutation"))]


def _slice(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    (x,) = op.operands
    starts, limits, strides = (
        integers(op, name) for name in ("start_indices", "limit_indices", "strides")
    )
    for d in shards.sharded_dims(x):
        require((starts[d], limits[d], strides[d]) == (0, shards.shape(x)[d], 1), op)
        limits[d] = shape_of(x)[d]
    require(shards.axes(x) == results[0], op)
    op.attributes["limit_indices"] = integer_array(limits)
    return [shards.axes(x)]


def _dynamic_slice(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    x = op.operands[0]
    sizes = integers(op, "slice_sizes")
    for d in shards.sharded_dims(x):
        require(sizes[d] == shards.shape(x)[d], op)
        sizes[d] = shape_of(x)[d]
    require(shards.axes(x) == results[0], op)
    op.attributes["slice_sizes"] = integer_array(sizes)
    return [shards.axes(x)]


def _dynamic_update_slice(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    x, update = list(op.operands)[:2]
    require(shards.axes(x) == shards.axes(update), op)
    for d in shards.sharded_dims(x):
        require(shards.shape(x)[d] == shards.shape(update)[d], op)
    return [shards.axes(x)]


def _concatenate(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    first, *others = map(shards.axes, op.operands)
    require(not first[ir.IntegerAttr(op.attributes["dimension"]).value], op)
    require(all(axes == first for axes in others), op)
    return [first]


def _pad(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    x = op.operands[0]
    for name in ("edge_padding_low", "edge_padding_high", "interior_padding"):
        amounts = integers(op, name)
        require(not any(amounts[d] for d in shards.sharded_dims(x)), op)
    return [shards.axes(x)]


def _reverse(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    axes = shards.axes(op.operands[0])
    require(not any(axes[d] for d in integers(op, "dimensions")), op)
    return [axes]


def _sort(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    first, *others = map(shards.axes, op.operands)
    require(not first[ir.IntegerAttr(op.attributes["dimension"]).value], op)
    require(all(axes == first for axes in others), op)
    return [first] * len(op.results)


def _fft(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    axes, length = shards.axes(op.operands[0]), len(integers(op, "fft_length"))
    require(not any(axes[len(axes) - length :]), op)
    return [axes]


def _optimization_barrier(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    return [shards.axes(x) for x in op.operands]


VIEWS = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "fft": _fft,
    "optimization_barrier": _optimization_barrier,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "sort": _sort,
    "transpose": _transpose,
}
