"""Weights in int4 as torch packs them for the CPU, in bytes with two numbers from 0 to 15 each.

Columns are packed in blocks of as many as torch's kernels for the processor take together. For each
element of the inner size a block has half as many bytes as columns. In a whole block byte i has the
columns i and i + half of them. In the last one, if it is smaller, and where torch has no vectors,
it has the columns 2i and 2i + 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import spread

# Columns of a block, by torch's name of what the processor can do; where it has none there are 32.
_COLUMNS = {"AVX512": 64, "AVX2": 32}
_MIDDLE = 8  # the number that means a group's zero


class _Part(NamedTuple):
    """Columns that are packed alike: blocks of a size, from the column `start` on."""

    start: int
    blocks: int
    size: int
    in_halves: bool


def packed(numbers: Value) -> Value:
    """The bytes [columns, inner / 2] of numbers from 0 to 15, uint8 [columns, inner]."""
    columns, inner = build.shape_of(numbers)
    made = []
    for start, blocks, size, in_halves in _parts(columns):
        part = build.slice_dim(numbers, 0, start, start + blocks * size)
        pairs = [blocks, 2, size // 2, inner] if in_halves else [blocks, size // 2, 2, inner]
        part, axis = build.reshape(part, pairs), 1 if in_halves else 2
        low, high = (build.slice_dim(part, axis, i, i + 1) for i in (0, 1))
        both = hlo.or_(low, hlo.shift_left(high, build.full_like(high, 4)))
        both = build.transpose(build.reshape(both, [blocks, size // 2, inner]), [0, 2, 1])
        made.append(build.reshape(both, [blocks * size * inner // 2]))
    return build.reshape(build.concatenate(made, 0), [columns, inner // 2])


def unpacked(weight: Value) -> Value:
    """The numbers from 0 to 15, uint8 [columns, inner], of bytes [columns, inner / 2]."""
    columns, inner = build.shape_of(weight)[0], 2 * build.shape_of(weight)[1]
    flat, made = build.reshape(weight, [columns * inner // 2]), []
    for start, blocks, size, in_halves in _parts(columns):
        first, stop = (n * inner // 2 for n in (start, start + blocks * size))
        part = build.reshape(build.slice_dim(flat, 0, first, stop), [blocks, inner, size // 2])
        low = hlo.and_(part, build.full_like(part, 15))
        high = hlo.shift_right_logical(part, build.full_like(part, 4))
        axis = 2 if in_halves else 3
        both = build.concatenate([build.expand_dims(x, axis) for x in (low, high)], axis)
        both = build.transpose(build.reshape(both, [blocks, inner, size]), [0, 2, 1])
        made.append(build.reshape(both, [blocks * size, inner]))
    return build.concatenate(made, 0)


def as_floats(weight: Value, scales: Value, group: int) -> Value:
    """A packed weight as float32 [columns, inner], by the scales and zeros of its groups.

    Args:
        weight: bytes [columns, inner / 2].
        scales: pairs of a scale and a zero [inner / group, columns, 2].
        group: how many elements share a pair.
    """
    numbers = build.cast(unpacked(weight), torch.float32)
    shape = columns, inner = build.shape_of(numbers)
    wide = build.reshape(numbers, [columns, inner // group, group])
    pairs = build.transpose(build.cast(scales, torch.float32), [2, 1, 0])
    scale, zero = (
        build.reshape(build.slice_dim(pairs, 0, i, i + 1), [columns, inner // group, 1])
        for i in (0, 1)
    )
    wide = hlo.subtract(wide, build.full_like(wide, _MIDDLE))
    wide = hlo.multiply(*spread([wide, scale], torch.float32))
    return build.reshape(hlo.add(*spread([wide, zero], torch.float32)), shape)


def _parts(columns: int) -> Sequence[_Part]:
    size = _COLUMNS.get(torch.backends.cpu.get_cpu_capability())
    blocks, left = divmod(columns, size or 32)
    parts = [_Part(0, blocks, size or 32, size is not None)] * (blocks > 0)
    last = [_Part(columns - left, 1, left, False)] * (left > 0)
    return [*parts, *last] or [_Part(0, 0, 32, False)]
