"""Attention of a few queries to keys and values that a mask hides parts of, in LLVM IR.

So does a model that decodes attend to a cache with all its places. Each unit of work is a query and
some of its heads that share keys and values. What the mask hides in front of the first key that it
shows, and behind the last one, is not read.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from llvmlite import ir

from xla_dynamo.runtime.cpu.attention_functions import (
    FLOAT,
    TYPES,
    AttentionWriter,
    side_by_side,
)
from xla_dynamo.runtime.cpu.float_functions import BYTES, converted_from
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD

NAME = "masked_attention"


class Attention(NamedTuple):
    """What is the same in all calls; strides are in elements, of the batch, heads and length.

    Attributes:
        dtype: of queries, keys, values and the output, float32 or bfloat16.
        mask_dtype: of the mask, float32 or bfloat16; None without one.
        batch: its size.
        heads: of queries.
        kv_heads: of keys and values; each serves as many heads of queries in a row.
        queries: how many there are.
        keys: how many there are, and values.
        size: of a head, a multiple of the lanes.
        scale: of the scores.
        causal: whether query i sees the keys 0 to i alone.
        strides: of queries, keys, values, the mask, the output and the logarithms of the sums. The
            mask's are 0 where it is the same.
    """

    dtype: torch.dtype
    mask_dtype: torch.dtype | None
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    scale: float
    causal: bool
    strides: tuple[tuple[int, ...], ...]


def written(of: Attention, lanes: int) -> str:
    """The text of a module with the function of `masked_attention`, for vectors of floats."""
    module = ir.Module(NAME)
    _Writer(module, of, lanes).write()
    return str(module)


class _Places(NamedTuple):
    """Where the keys and values are that a unit reads.

    Attributes:
        keys: the first key of all.
        values: the first value of all.
        first: the number of the first one that is read.
        count: how many are read.
    """

    keys: Any
    values: Any
    first: Any
    count: Any


class _Writer(AttentionWriter):
    def __init__(self, module: ir.Module, of: Attention, lanes: int) -> None:
        super().__init__(
            module,
            NAME,
            [*[ADDRESS] * 6, WORD, WORD],
            dtype=of.dtype,
            size=of.size,
            together=side_by_side(of.heads, of.kv_heads),
            lanes=lanes,
        )
        self._of = of
        *self._arrays, self._part, self._parts = self.body.arguments
        self._mask_kind = TYPES[of.mask_dtype or of.dtype]

    def write(self) -> None:
        """Go through the units of one part of the work."""
        build, of = self.build, self._of
        self.take_room(WORD(of.keys))
        groups = of.heads // self.together
        units = WORD(of.batch * of.queries * groups)
        with self.body.times(self.units_of_part(units, self._part, self._parts)) as turn:
            unit = build.add(build.mul(turn, self._parts), self._part)
            # Parts side by side have other heads, so that each reads some of the keys.
            rest, group = build.udiv(unit, WORD(groups)), build.urem(unit, WORD(groups))
            batch, query = build.udiv(rest, WORD(of.queries)), build.urem(rest, WORD(of.queries))
            self._unit(batch, build.mul(group, WORD(self.together)), query)
        self.give_back_room()

    def _unit(self, batch: Any, head: Any, query: Any) -> None:
        """Some heads of a query."""
        build, of = self.build, self._of
        shared, zero = build.udiv(head, WORD(of.heads // of.kv_heads)), WORD(0)
        asked = self._at(0, batch, head, query)
        keys, values = (self._at(i, batch, shared, zero) for i in (1, 2))
        output, sums = (self._at(i, batch, head, query) for i in (4, 5))
        stop = WORD(of.keys)
        if of.causal:
            after = build.add(query, WORD(1))
            stop = build.select(build.icmp_unsigned("<", after, stop), after, stop)
        first = zero
        masks = self._masks(batch, head, query)
        if masks:
            first, stop = self._shown(masks, stop)
        count = build.sub(stop, first)
        places = _Places(keys, values, first, count)
        self.take_query(asked, of.strides[0][1], of.scale)
        self.for_keys(places, False, self.score)
        masks = [self.element(mask, first, self._mask_kind) for mask in masks]
        totals = []
        for h in range(self.together):
            mask = masks[h % len(masks)] if masks else None
            total, peak = self.weights(h, count, mask, self._mask_kind)
            totals.append(total)
            one, largest = (build.extract_element(x, NUMBER(0)) for x in (total, peak))
            logarithm = build.call(self.externals["logf"], [one])
            place = self.element(sums, WORD(h * of.strides[5][1]), FLOAT)
            build.store(build.fadd(logarithm, largest), place, align=4)
        self.write_sums(places, totals, output, of.strides[4][1])

    def _masks(self, batch: Any, head: Any, query: Any) -> list[Any]:
        """The row of a mask for a query: one for all heads, or one for each."""
        of = self._of
        if of.mask_dtype is None:
            return []
        count = self.together if of.strides[3][1] else 1
        heads = [self.build.add(head, WORD(h)) for h in range(count)]
        return [self._at(3, batch, h, query) for h in heads]

    def _shown(self, masks: Sequence[Any], stop: Any) -> tuple[Any, Any]:
        """The first key that one of some masks shows, and behind the last one; equal if none."""
        build, body, lanes = self.build, self.body, self.lanes
        least, most = body.variable(NUMBER), body.variable(NUMBER)
        build.store(NUMBER(self._of.keys), least)
        build.store(NUMBER(0), most)
        for mask in masks:
            for at, size in body.steps(WORD(0), stop, (lanes, 1)):
                element = self.element(mask, at, self._mask_kind)
                kind = FLOAT if size == 1 else self.vector
                shown = converted_from(build, element, self._mask_kind, kind)
                hidden = FLOAT(-math.inf) if size == 1 else self.every(-math.inf)
                is_shown = build.fcmp_unordered("!=", shown, hidden)
                place = build.trunc(at, NUMBER)
                if size == 1:
                    first = build.select(is_shown, place, NUMBER(self._of.keys))
                    last = build.select(is_shown, build.add(place, NUMBER(1)), NUMBER(0))
                else:
                    bits = build.bitcast(is_shown, ir.IntType(lanes))
                    bits = build.zext(bits, NUMBER)
                    before = build.cttz(bits, ir.IntType(1)(0))
                    after = build.ctlz(bits, ir.IntType(1)(0))
                    is_any = build.icmp_unsigned("!=", bits, NUMBER(0))
                    first = build.select(is_any, build.add(place, before), NUMBER(self._of.keys))
                    last = build.sub(build.add(place, NUMBER(32)), after)
                    last = build.select(is_any, last, NUMBER(0))
                for variable, value, order in ((least, first, "<"), (most, last, ">")):
                    known = build.load(variable, typ=NUMBER)
                    better = build.icmp_signed(order, value, known)
                    build.store(build.select(better, value, known), variable)
        first, last = (build.zext(build.load(v, typ=NUMBER), WORD) for v in (least, most))
        none = build.icmp_unsigned(">", first, last)
        return build.select(none, last, first), last

    def for_keys(self, places: _Places, is_values: bool, do: Callable[[Any, Any], None]) -> None:
        """Go through those that are shown."""
        build, body = self.build, self.body
        start = places.values if is_values else places.keys
        row = WORD(self._of.strides[2 if is_values else 1][2] * BYTES[self.kind])
        base = body.address(start, build.mul(places.first, row))
        self.for_rows(places.count, lambda key: body.address(base, build.mul(key, row)), do)

    # --- elements ------------------------------------------------------------------------------

    def _at(self, array: int, *indices: Any) -> Any:
        """Where an array's row for one of the batch, a head and a place begins."""
        kinds = [self.kind, self.kind, self.kind, self._mask_kind, self.kind, FLOAT]
        place = self._arrays[array]
        for index, stride in zip(indices, self._of.strides[array], strict=True):
            place = self.element(place, self.build.mul(index, WORD(stride)), kinds[array])
        return place
