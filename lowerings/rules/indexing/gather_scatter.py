"""Gather and scatter: the builders that all indexed reads and writes share, and their namesakes.

Eager torch raises IndexError for an index out of range on the CPU. XLA has no errors: a gather
clamps the index to the nearest one in range, a scatter drops the write.
"""

from collections.abc import Callable, Sequence

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Number, Value
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.table import Context, aten, lowers


def at_least_1d(x: Value) -> Value:
    """x, or one element in a row for a 0-d x: torch indexes 0-d tensors along dimension 0."""
    return x if build.rank_of(x) else build.reshape(x, [1])


def wrap_negative(index: Value, size: int) -> Value:
    """Indices that count from the end, as numbers from the start."""
    from_end = hlo.add(index, build.full_like(index, size))
    return build.where(build.compare(index, build.full_like(index, 0), "LT"), from_end, index)


def gather_rows(x: Value, dims: Sequence[int], indices: Sequence[Value], first: int) -> Value:
    """X with the dimensions `dims` indexed by as many index tensors of one shape.

    The index tensors' dimensions begin at `first` of the result, x's others are around them. What
    an index picks is copied as one block, which is what makes a gather fast.
    """
    shape, index_rank = build.shape_of(x), build.rank_of(indices[0])
    others = [n for d, n in enumerate(shape) if d not in dims]
    result = [*others[:first], *build.shape_of(indices[0]), *others[first:]]
    if 0 in result:
        return build.full(result, 0, build.dtype_of(x))
    offset = [d for d in range(len(result)) if not first <= d < first + index_rank]
    numbers = hlo.GatherDimensionNumbers.get(offset, list(dims), [], [], list(dims), index_rank)
    sizes = [1 if d in dims else n for d, n in enumerate(shape)]
    return hlo.gather(x, _vectors(indices), numbers, sizes)


def scatter_rows(
    x: Value,
    dims: Sequence[int],
    indices: Sequence[Value],
    first: int,
    updates: Value,
    combine: str,
) -> Value:
    """Write updates, of the shape that `gather_rows` would give, where it would have read.

    `combine` is "set" (the last write to an element wins), "sum", "prod", "max" or "min".
    """
    if combine == "set" and build.numel_of(indices[0]) == 1:
        return _write_one(x, dims, indices, updates)
    index_rank = build.rank_of(indices[0])
    window = [d for d in range(build.rank_of(updates)) if not first <= d < first + index_rank]
    numbers = hlo.ScatterDimensionNumbers.get(window, list(dims), [], [], list(dims), index_rank)
    return _scatter(x, _vectors(indices), updates, numbers, combine)


def _write_one(x: Value, dims: Sequence[int], indices: Sequence[Value], block: Value) -> Value:
    """A single write, in a fifth of a scatter's time; out of range it is dropped all the same."""
    shape = build.shape_of(x)
    size = [1 if d in dims else n for d, n in enumerate(shape)]
    if 0 in shape:
        return x
    starts = [build.scalar(0, torch.int64) for _ in shape]
    fits = build.scalar(True, torch.bool)
    for dim, index in zip(dims, indices, strict=True):
        starts[dim] = build.cast(build.reshape(index, []), torch.int64)
        not_below = build.compare(starts[dim], build.scalar(0, torch.int64), "GE")
        below_end = build.compare(starts[dim], build.scalar(shape[dim], torch.int64), "LT")
        fits = hlo.and_(fits, hlo.and_(not_below, below_end))
    old = hlo.dynamic_slice(x, starts, size)
    block = build.where(fits, build.reshape(block, size), old)
    return hlo.dynamic_update_slice(x, block, starts)


def _vectors(indices: Sequence[Value]) -> Value:
    """Index tensors of one shape as one tensor of index vectors, in a last dimension."""
    if len(indices) == 1:
        return indices[0]  # the dimension may be left out where it would have size 1
    rank = build.rank_of(indices[0])
    return build.concatenate([build.expand_dims(i, rank) for i in indices], rank)


def _scatter(
    x: Value,
    indices: Value,
    updates: Value,
    numbers: hlo.ScatterDimensionNumbers,
    combine: str,
) -> Value:
    if 0 in build.shape_of(updates) or 0 in build.shape_of(x):
        return x
    dtype = build.dtype_of(x)
    compute = computed_in(x) if combine in ("sum", "prod") else dtype
    x, updates = build.cast(x, compute), build.cast(updates, compute)
    op = hlo.ScatterOp([x.type], [x], indices, [updates], numbers)
    fold = (lambda old, new: new) if combine == "set" else build.combiner(combine)
    build.region(op.regions[0], [tensor_type((), compute)] * 2, fold)
    return build.cast(op.results[0], dtype)


def reduce_into(
    write: Callable[[Value, Value, str], Value],
    x: Value,
    updates: Value,
    reduce: str,
    include_self: bool,
) -> Value:
    """Torch's reductions by `write(x, updates, combine)`, a scatter to indices already fixed."""
    combine = {"mean": "sum", "amax": "max", "amin": "min", "add": "sum", "multiply": "prod"}.get(
        reduce, reduce
    )
    if not include_self:
        x = write(x, build.full_like(updates, build.identity(combine, build.dtype_of(x))), "set")
    total = write(x, updates, combine)
    if reduce != "mean":
        return total
    start = build.full_like(x, 1 if include_self else 0)
    count = write(start, build.full_like(updates, 1), "sum")
    return _floor_divide(total, hlo.maximum(count, build.full_like(count, 1)))


def _floor_divide(x: Value, positive: Value) -> Value:
    quotient = hlo.divide(x, positive)
    if build.dtype_of(x).is_floating_point:
        return quotient
    too_high = build.compare(hlo.multiply(quotient, positive), x, "GT")
    return hlo.subtract(quotient, build.cast(too_high, build.dtype_of(x)))


# --- one index an element, along one dimension -------------------------------------------------


class _Along:
    """How `index` of gather and scatter addresses the elements of a tensor along `dim`.

    Where the index was expanded (its fake tensor has stride 0, as `i[:, None].expand_as(src)`
    of graph networks), one index stands for a row of elements, which move as one block. The
    other dimensions are batch dimensions of the gather or scatter.
    """

    def __init__(self, dim: int, index: Value, fake: torch.Tensor) -> None:
        self.index = at_least_1d(index)
        self.shape = build.shape_of(self.index)
        rank = len(self.shape)
        self.dim = build.normalize_dim(dim, rank)
        expanded = [d for d in range(fake.dim()) if fake.stride(d) == 0 and fake.shape[d] > 1]
        self.rows = [d for d in expanded if d != self.dim]
        kept = [d for d in range(rank) if d not in self.rows]
        for d in self.rows:
            self.index = build.slice_dim(self.index, d, 0, 1)
        self.index = build.reshape(self.index, [self.shape[d] for d in kept])
        self.batch = [d for d in kept if d != self.dim]
        self.index_batch = [kept.index(d) for d in self.batch]
        self.vector_dim = len(kept)

    def crop(self, x: Value) -> Value:
        """The part of x that the index reaches: it may be shorter in the other dimensions."""
        stop = list(self.shape)
        stop[self.dim] = build.shape_of(x)[self.dim]
        return build.slice_(x, [0] * len(stop), stop)

    def read(self, x: Value) -> Value:
        part = self.crop(at_least_1d(x))
        numbers = hlo.GatherDimensionNumbers.get(
            self.rows, [self.dim], self.batch, self.index_batch, [self.dim], self.vector_dim
        )
        sizes = [n if d in self.rows else 1 for d, n in enumerate(self.shape)]
        return hlo.gather(part, self.index, numbers, sizes)

    def write(self, x: Value, updates: Value, combine: str) -> Value:
        whole = at_least_1d(x)
        part = self.crop(whole)
        updates = build.slice_(at_least_1d(updates), [0] * len(self.shape), self.shape)
        numbers = hlo.ScatterDimensionNumbers.get(
            self.rows, [self.dim], self.batch, self.index_batch, [self.dim], self.vector_dim
        )
        written = _scatter(part, self.index, updates, numbers, combine)
        if part.type != whole.type:
            zero = build.scalar(0, torch.int64)
            written = hlo.dynamic_update_slice(whole, written, [zero] * len(self.shape))
        return build.reshape(written, build.shape_of(x))


@lowers(aten.gather.default)
def gather(ctx: Context, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if 0 in ctx.out.shape:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    return build.reshape(_Along(dim, index, ctx.operands[2]).read(x), ctx.out.shape)


@lowers(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce)
def scatter(
    ctx: Context, x: Value, dim: int, index: Value, src: Value | Number, *, reduce: str = "set"
) -> Value:
    if 0 in build.shape_of(index) or 0 in build.shape_of(x):
        return x
    if not build.is_value(src):
        src = build.full(build.shape_of(index), src, build.dtype_of(x))
    combine = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    return _Along(dim, index, ctx.operands[2]).write(x, src, combine)


@lowers(aten.scatter_add.default)
def scatter_add(ctx: Context, x: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter_reduce(ctx, x, dim, index, src, "sum")


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Context,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    if 0 in build.shape_of(index) or 0 in build.shape_of(x):
        return x
    along = _Along(dim, index, ctx.operands[2])
    src = build.slice_(at_least_1d(src), [0] * len(along.shape), along.shape)
    return reduce_into(along.write, x, src, reduce, include_self)
