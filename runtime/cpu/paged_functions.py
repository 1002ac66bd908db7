"""Attention of tokens to the keys and values of their own requests, in LLVM IR.

Keys and values lie in rows of a paged cache, but for those of the tokens themselves. Each unit of
work is a token and some of its heads that share keys and values: the scores come first, then their
exponentials, then the sum of values. All is computed in float32, and nothing is read but the keys
and values of the token's request.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from llvmlite import ir

from xla_dynamo.runtime.cpu.float_functions import BYTES, converted_from, converted_to, repeated
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD, Function

NAME = "paged_attention"
_FLOAT, _HALF = ir.FloatType(), ir.IntType(16)
_TYPES = {torch.float32: _FLOAT, torch.bfloat16: _HALF}
_NOTHING = ir.VoidType()
EXTERNALS = {
    "malloc": ir.FunctionType(ADDRESS, [WORD]),
    "free": ir.FunctionType(_NOTHING, [ADDRESS]),
}
_MOST_HEADS = 4  # that are computed side by side
_MOST_SUMS = 16  # vectors of sums of values, which registers hold
_AHEAD = 8  # so many keys before one is read, the processor is told of it
# exp(x) = 2**n * exp(r), with n = round(x / ln 2) and |r| <= ln(2) / 2. The logarithm is in two
# parts, so that n times the first one is exact; exp(r) is 1 + r + r**2 * p(r), whose coefficients
# are those of Cephes' expf. It is off by 2e-7 at most.
_LOGARITHM = 0.693359375, -2.12194440e-4
_COEFFICIENTS = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_LEAST = -87.0  # exponentials of less are 0


class Attention(NamedTuple):
    """What is the same in all calls of a model.

    Attributes:
        dtype: of all arrays, float32 or bfloat16.
        heads: of queries.
        kv_heads: of keys and values; each serves as many heads of queries in a row.
        size: of a head, a multiple of the lanes.
        between: rows of the cache from the keys of a token to its values.
        scale: of the scores.
    """

    dtype: torch.dtype
    heads: int
    kv_heads: int
    size: int
    between: int
    scale: float

    @property
    def together(self) -> int:
        """How many heads are computed side by side: they share keys and values."""
        shared = self.heads // self.kv_heads
        return max(n for n in range(1, _MOST_HEADS + 1) if shared % n == 0)


def written(of: Attention, lanes: int) -> str:
    """The text of a module with the function of `paged_attention`, for vectors of floats."""
    module = ir.Module(NAME)
    externals = {name: ir.Function(module, kind, name) for name, kind in EXTERNALS.items()}
    _Writer(module, of, lanes).write(externals)
    return str(module)


class _Writer:
    def __init__(self, module: ir.Module, of: Attention, lanes: int) -> None:
        self._of, self._lanes, self._kind = of, lanes, _TYPES[of.dtype]
        self._body = Function(module, NAME, NUMBER, [*[ADDRESS] * 9, *[WORD] * 5], exported=True)
        self._build = self._body.build
        given = self._body.arguments
        self._query, self._keys, self._values, self._rows, self._read = given[:5]
        self._starts_q, self._starts_k, self._mask, self._result = given[5:9]
        self._tokens, self._requests, self._all, self._part, self._parts = given[9:]
        self._vector = ir.VectorType(_FLOAT, lanes)
        self._vectors = of.size // lanes

    def write(self, externals: dict[str, ir.Function]) -> None:
        """Go through the units of one part of the work."""
        build, body, of = self._build, self._body, self._of
        # Of each head its query in float32, and its scores, with room for whole vectors.
        self._room = build.mul(
            build.udiv(build.add(self._all, WORD(2 * self._lanes - 1)), WORD(self._lanes)),
            WORD(self._lanes),
        )
        floats = build.mul(build.add(self._room, WORD(of.size)), WORD(of.together))
        memory = build.call(externals["malloc"], [build.mul(floats, WORD(4))])
        with build.if_then(build.icmp_unsigned("==", memory, ADDRESS(None)), likely=False):
            build.ret(NUMBER(1))
        self._queries = memory
        self._scores = body.address(memory, 4 * of.size * of.together)
        groups = of.heads // of.together
        units = build.mul(self._tokens, WORD(groups))
        mine = build.udiv(
            build.add(build.sub(units, self._part), build.sub(self._parts, WORD(1))), self._parts
        )
        with body.times(mine) as turn:
            unit = build.add(build.mul(turn, self._parts), self._part)
            token, group = build.udiv(unit, WORD(groups)), build.urem(unit, WORD(groups))
            self._unit(token, build.mul(group, WORD(of.together)))
        build.call(externals["free"], [memory])
        build.ret(NUMBER(0))

    def _unit(self, token: Any, head: Any) -> None:
        """Some heads of a token."""
        build, body, of = self._build, self._body, self._of
        first = build.mul(build.add(build.mul(token, WORD(of.heads)), head), WORD(of.size))
        result = self._element(self._result, first)
        owner = body.variable(WORD)
        build.store(self._requests, owner)
        with body.times(self._requests) as number:
            begins = build.icmp_signed("<=", self._start(self._starts_q, number), token)
            ends = self._start(self._starts_q, build.add(number, WORD(1)))
            with build.if_then(build.and_(begins, build.icmp_signed("<", token, ends))):
                build.store(number, owner)
        request = build.load(owner, typ=WORD)
        nobody = build.icmp_unsigned("==", request, self._requests)
        with build.if_else(nobody) as (padding, real):
            with padding:
                zero = self._vector(None)
                for i in range(of.together * self._vectors):
                    self._write(zero, result, WORD(i * self._lanes))
            with real:
                query = self._element(self._query, first)
                self._attend(token, head, request, query, result)

    def _attend(self, token: Any, head: Any, request: Any, query: Any, result: Any) -> None:
        build, body, of = self._build, self._body, self._of
        scale = repeated(build, _FLOAT(of.scale), self._lanes)
        for i in range(of.together * self._vectors):
            value = build.fmul(self._given(query, WORD(i * self._lanes)), scale)
            build.store(value, body.address(self._queries, 4 * i * self._lanes), align=4)
        after = build.add(request, WORD(1))
        first_q, first_k = (
            self._start(starts, request) for starts in (self._starts_q, self._starts_k)
        )
        count = build.sub(self._start(self._starts_k, after), first_k)
        new = build.sub(self._start(self._starts_q, after), first_q)
        past = build.sub(count, new)
        shared = build.udiv(head, WORD(of.heads // of.kv_heads))
        places = _Places(first_q, first_k, past, count, shared)
        self._for_keys(places, self._keys, 0, self._score)
        mask = self._element(self._mask, build.add(build.mul(token, self._all), first_k))
        totals = [self._weights(h, count, mask) for h in range(of.together)]
        step = max(_MOST_SUMS // of.together, 1)
        for start in range(0, self._vectors, step):
            some = range(start, min(start + step, self._vectors))
            sums = self._sum_values(places, some)
            for h, total in enumerate(totals):
                for i, vector in enumerate(some):
                    value = build.fdiv(sums[h * len(some) + i], total)
                    self._write(value, result, WORD((h * self._vectors + vector) * self._lanes))

    def _for_keys(
        self, places: "_Places", new: Any, rows: int, do: Callable[[Any, Any], None]
    ) -> None:
        """Do something for each key, or value: with its number, and the address of its row."""
        build, body, of = self._build, self._body, self._of
        row = of.kv_heads * of.size * BYTES[self._kind]
        at = build.mul(places.shared, WORD(of.size * BYTES[self._kind]))
        base = body.address(self._rows, rows * row, at)

        def cached(key: Any) -> Any:
            place = build.mul(build.add(places.first_k, key), WORD(8))
            return body.address(base, build.mul(body.load(self._read, place), WORD(row)))

        last = build.sub(places.past, WORD(1))
        with body.times(places.past) as key:
            ahead = build.add(key, WORD(_AHEAD))
            ahead = build.select(build.icmp_signed("<", ahead, last), ahead, last)
            soon = cached(ahead)
            for line in range(0, of.size * BYTES[self._kind], 64):
                body.fetch(body.address(soon, line))
            do(key, cached(key))
        with body.times(build.sub(places.count, places.past)) as number:
            place = build.mul(build.add(places.first_q, number), WORD(row))
            do(build.add(places.past, number), body.address(new, place, at))

    def _score(self, key: Any, row: Any) -> None:
        """The scores of a key for each head."""
        build, body = self._build, self._body
        parts = [self._given(row, WORD(i * self._lanes)) for i in range(self._vectors)]
        for h in range(self._of.together):
            total = self._vector(None)
            for i, part in enumerate(parts):
                at = 4 * self._lanes * (h * self._vectors + i)
                query = build.load(body.address(self._queries, at), typ=self._vector, align=4)
                total = body.multiply_add(part, query, total)
            name = f"llvm.vector.reduce.fadd.v{self._lanes}f32"
            known = body.intrinsic(name, _FLOAT, _FLOAT, self._vector)
            value = build.call(known, [_FLOAT(-0.0), total], fastmath=("reassoc",))
            build.store(value, self._at_score(h, key), align=4)

    def _weights(self, h: int, count: Any, mask: Any) -> Any:
        """Make weights of a head's scores; returns their sum, in each lane."""
        build, body, lanes = self._build, self._body, self._lanes
        least = ir.Constant(self._vector, [-math.inf] * lanes)
        # Behind the last score comes what is nothing, up to a whole vector.
        build.store(least, self._at_score(h, count), align=4)
        for at, size in body.steps(WORD(0), count, (lanes, 1)):
            place = self._at_score(h, at)
            kind = _FLOAT if size == 1 else self._vector
            added = converted_from(build, self._element(mask, at), self._kind, kind)
            build.store(build.fadd(build.load(place, typ=kind, align=4), added), place, align=4)
        whole = build.udiv(build.add(count, WORD(lanes - 1)), WORD(lanes))
        with body.summing(whole, [least]) as (turn, peaks):
            score = self._vector_of_scores(h, turn)
            peaks[0] = build.select(build.fcmp_ordered(">", score, peaks[0]), score, peaks[0])
        peak = self._in_all_lanes("fmax", peaks[0])
        with body.summing(whole, [self._vector(None)]) as (turn, sums):
            value = self._exponential(build.fsub(self._vector_of_scores(h, turn), peak))
            build.store(value, self._at_score(h, build.mul(turn, WORD(lanes))), align=4)
            sums[0] = build.fadd(sums[0], value)
        return self._in_all_lanes("fadd", sums[0])

    def _sum_values(self, places: "_Places", vectors: range) -> list[Any]:
        """The sums of some vectors of values, times their weights, for each head."""
        build, body, of = self._build, self._body, self._of
        kept = [body.variable(self._vector) for _ in range(of.together * len(vectors))]
        for place in kept:
            build.store(self._vector(None), place)

        def add(key: Any, row: Any) -> None:
            parts = [self._given(row, WORD(i * self._lanes)) for i in vectors]
            for h in range(of.together):
                one = build.load(self._at_score(h, key), typ=_FLOAT, align=4)
                weight = repeated(build, one, self._lanes)
                for i, part in enumerate(parts):
                    place = kept[h * len(vectors) + i]
                    total = build.load(place, typ=self._vector)
                    build.store(body.multiply_add(weight, part, total), place)

        self._for_keys(places, self._values, of.between, add)
        return [build.load(place, typ=self._vector) for place in kept]

    # --- elements ------------------------------------------------------------------------------

    def _start(self, starts: Any, number: Any) -> Any:
        """Where a request starts, a word of 32 bits."""
        place = self._body.address(starts, self._build.mul(number, WORD(4)))
        return self._build.sext(self._build.load(place, typ=NUMBER, align=4), WORD)

    def _element(self, base: Any, index: Any) -> Any:
        return self._body.address(base, self._build.mul(index, WORD(BYTES[self._kind])))

    def _given(self, base: Any, index: Any) -> Any:
        """A vector of elements, in float32."""
        return converted_from(self._build, self._element(base, index), self._kind, self._vector)

    def _write(self, value: Any, base: Any, index: Any) -> None:
        place = self._element(base, index)
        made = converted_to(self._build, value, self._kind)
        self._build.store(made, place, align=BYTES[self._kind])

    def _at_score(self, h: int, index: Any) -> Any:
        build = self._build
        place = build.add(build.mul(self._room, WORD(h)), index)
        return self._body.address(self._scores, build.mul(place, WORD(4)))

    def _vector_of_scores(self, h: int, turn: Any) -> Any:
        place = self._at_score(h, self._build.mul(turn, WORD(self._lanes)))
        return self._build.load(place, typ=self._vector, align=4)

    def _in_all_lanes(self, kind: str, value: Any) -> Any:
        """The sum of a vector's numbers, or the largest, in each lane."""
        build, body = self._build, self._body
        name = f"llvm.vector.reduce.{kind}.v{self._lanes}f32"
        if kind == "fadd":
            known = body.intrinsic(name, _FLOAT, _FLOAT, self._vector)
            one = build.call(known, [_FLOAT(-0.0), value], fastmath=("reassoc",))
        else:
            one = build.call(body.intrinsic(name, _FLOAT, self._vector), [value])
        return repeated(build, one, self._lanes)

    def _exponential(self, x: Any) -> Any:
        """exp(x) for x <= 0, or NaN."""
        build, body = self._build, self._body
        integers = ir.VectorType(NUMBER, self._lanes)

        def every(number: float) -> Any:
            return ir.Constant(self._vector, [number] * self._lanes)

        is_small = build.fcmp_ordered("<", x, every(_LEAST))
        is_nan = build.fcmp_unordered("uno", x, x)
        kept = build.select(build.or_(is_small, is_nan), every(0.0), x)
        rint = body.intrinsic(f"llvm.rint.v{self._lanes}f32", self._vector, self._vector)
        n = build.call(rint, [build.fmul(kept, every(1 / math.log(2)))])
        r = kept
        for part in _LOGARITHM:
            r = body.multiply_add(n, every(-part), r)
        p = every(_COEFFICIENTS[0])
        for coefficient in _COEFFICIENTS[1:]:
            p = body.multiply_add(p, r, every(coefficient))
        p = build.fadd(body.multiply_add(build.fmul(r, r), p, r), every(1.0))
        bits = build.add(build.fptosi(n, integers), ir.Constant(integers, [127] * self._lanes))
        power = build.shl(bits, ir.Constant(integers, [23] * self._lanes))
        made = build.fmul(p, build.bitcast(power, self._vector))
        made = build.select(is_small, every(0.0), made)
        return build.select(is_nan, x, made)


class _Places(NamedTuple):
    """Where a request's keys and values are.

    Attributes:
        first_q: its first token.
        first_k: its first key.
        past: how many keys are in the cache.
        count: how many keys it has.
        shared: which head of keys and values is read.
    """

    first_q: Any
    first_k: Any
    past: Any
    count: Any
    shared: Any
