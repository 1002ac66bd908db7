"""What functions for attention have in common, in LLVM IR: scores, weights, and sums of values.

All is computed in float32, for some heads side by side that share keys and values. Where keys and
values lie, a subclass says.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from llvmlite import ir

from xla_dynamo.runtime.cpu.float_functions import BYTES, converted_from, converted_to, repeated
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD, Function

FLOAT = ir.FloatType()
TYPES = {torch.float32: FLOAT, torch.bfloat16: ir.IntType(16)}
EXTERNALS = {
    "malloc": ir.FunctionType(ADDRESS, [WORD]),
    "free": ir.FunctionType(ir.VoidType(), [ADDRESS]),
    "logf": ir.FunctionType(FLOAT, [FLOAT]),
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


def side_by_side(heads: int, kv_heads: int) -> int:
    """How many heads of queries are computed side by side, of those that share keys and values."""
    shared = heads // kv_heads
    return max(n for n in range(1, _MOST_HEADS + 1) if shared % n == 0)


class AttentionWriter:
    """Writes the body of a function that attends for some heads at a time.

    A subclass says in `for_keys` where keys and values lie, and calls `take_room` before all else.
    """

    def __init__(
        self,
        module: ir.Module,
        name: str,
        arguments: Sequence[ir.Type],
        *,
        dtype: torch.dtype,
        size: int,
        together: int,
        lanes: int,
    ) -> None:
        """Begin a function.

        Args:
            module: where it is written.
            name: of the function.
            arguments: their types.
            dtype: of queries, keys, values and results.
            size: of a head, a multiple of the lanes.
            together: heads that are computed side by side.
            lanes: floats of a vector.
        """
        self.externals = {n: ir.Function(module, kind, n) for n, kind in EXTERNALS.items()}
        self.body = Function(module, name, NUMBER, arguments, exported=True)
        self.build = self.body.build
        self.kind, self.size, self.together, self.lanes = TYPES[dtype], size, together, lanes
        self.vector = ir.VectorType(FLOAT, lanes)
        self.vectors = size // lanes

    def for_keys(self, places: Any, is_values: bool, do: Callable[[Any, Any], None]) -> None:
        """Do something for each key, or value: with its number, and the address of its row."""
        raise NotImplementedError

    def for_rows(self, count: Any, row_of: Callable[[Any], Any], do: Callable[..., None]) -> None:
        """Do something for each of some rows, by number and address; the next are fetched ahead."""
        build, last = self.build, self.build.sub(count, WORD(1))
        with self.body.times(count) as number:
            ahead = build.add(number, WORD(_AHEAD))
            self.fetch_row(row_of(build.select(build.icmp_signed("<", ahead, last), ahead, last)))
            do(number, row_of(number))

    def take_room(self, keys: Any) -> None:
        """Take memory for so many keys' scores, of each head, and for its query in float32.

        The function returns 1 where there is none.
        """
        build = self.build
        vectors = build.udiv(build.add(keys, WORD(2 * self.lanes - 1)), WORD(self.lanes))
        self._room = build.mul(vectors, WORD(self.lanes))
        floats = build.mul(build.add(self._room, WORD(self.size)), WORD(self.together))
        memory = build.call(self.externals["malloc"], [build.mul(floats, WORD(4))])
        with build.if_then(build.icmp_unsigned("==", memory, ADDRESS(None)), likely=False):
            build.ret(NUMBER(1))
        self._queries = memory
        self._scores = self.body.address(memory, 4 * self.size * self.together)

    def give_back_room(self) -> None:
        """Free the memory, and return 0."""
        self.build.call(self.externals["free"], [self._queries])
        self.build.ret(NUMBER(0))

    def units_of_part(self, units: Any, part: Any, parts: Any) -> Any:
        """How many units of work are a part's own: each of them is `parts` behind the last."""
        build = self.build
        return build.udiv(build.add(build.sub(units, part), build.sub(parts, WORD(1))), parts)

    def take_query(self, query: Any, between: int, scale: float) -> None:
        """Bring the queries of the heads, `between` elements from each other, into float32."""
        build, factor = self.build, repeated(self.build, FLOAT(scale), self.lanes)
        for h in range(self.together):
            for i in range(self.vectors):
                value = build.fmul(self.given(query, WORD(h * between + i * self.lanes)), factor)
                at = 4 * self.lanes * (h * self.vectors + i)
                build.store(value, self.body.address(self._queries, at), align=4)

    def score(self, key: Any, row: Any) -> None:
        """The scores of a key for each head."""
        build, body = self.build, self.body
        parts = [self.given(row, WORD(i * self.lanes)) for i in range(self.vectors)]
        for h in range(self.together):
            total = self.vector(None)
            for i, part in enumerate(parts):
                at = 4 * self.lanes * (h * self.vectors + i)
                query = build.load(body.address(self._queries, at), typ=self.vector, align=4)
                total = body.multiply_add(part, query, total)
            build.store(self._folded("fadd", total), self._at_score(h, key), align=4)

    def weights(self, h: int, count: Any, mask: Any, mask_kind: ir.Type) -> tuple[Any, Any]:
        """Make weights of a head's scores, to which a mask is added if there is one.

        Returns:
            Their sum and the largest score, each in all lanes; 1 and 0 where all weights are 0.
        """
        build, body, lanes = self.build, self.body, self.lanes
        least = self.every(-math.inf)
        # Behind the last score comes what is nothing, up to a whole vector.
        build.store(least, self._at_score(h, count), align=4)
        if mask is not None:
            for at, size in body.steps(WORD(0), count, (lanes, 1)):
                place = self._at_score(h, at)
                kind = FLOAT if size == 1 else self.vector
                element = self.element(mask, at, mask_kind)
                added = converted_from(build, element, mask_kind, kind)
                score = build.load(place, typ=kind, align=4)
                build.store(build.fadd(score, added), place, align=4)
        whole = build.udiv(build.add(count, WORD(lanes - 1)), WORD(lanes))
        with body.summing(whole, [least]) as (turn, peaks):
            score = self._vector_of_scores(h, turn)
            peaks[0] = build.select(build.fcmp_ordered(">", score, peaks[0]), score, peaks[0])
        peak = self._or(self._in_all_lanes("fmax", peaks[0]), -math.inf, 0.0)
        with body.summing(whole, [self.vector(None)]) as (turn, sums):
            value = self._exponential(build.fsub(self._vector_of_scores(h, turn), peak))
            build.store(value, self._at_score(h, build.mul(turn, WORD(lanes))), align=4)
            sums[0] = build.fadd(sums[0], value)
        return self._or(self._in_all_lanes("fadd", sums[0]), 0.0, 1.0), peak

    def write_sums(self, places: Any, totals: Sequence[Any], result: Any, between: int) -> None:
        """Write the sums of values times weights, over the weights' totals, for each head.

        Results of heads are `between` elements from each other.
        """
        step = max(_MOST_SUMS // self.together, 1)
        for start in range(0, self.vectors, step):
            some = range(start, min(start + step, self.vectors))
            sums = self._sum_values(places, some)
            for h, total in enumerate(totals):
                for i, vector in enumerate(some):
                    value = self.build.fdiv(sums[h * len(some) + i], total)
                    self.write_vector(value, result, WORD(h * between + vector * self.lanes))

    def _sum_values(self, places: Any, vectors: range) -> list[Any]:
        """The sums of some vectors of values, times their weights, for each head."""
        build, body = self.build, self.body
        kept = [body.variable(self.vector) for _ in range(self.together * len(vectors))]
        for place in kept:
            build.store(self.vector(None), place)

        def add(key: Any, row: Any) -> None:
            parts = [self.given(row, WORD(i * self.lanes)) for i in vectors]
            for h in range(self.together):
                one = build.load(self._at_score(h, key), typ=FLOAT, align=4)
                weight = repeated(build, one, self.lanes)
                for i, part in enumerate(parts):
                    place = kept[h * len(vectors) + i]
                    total = build.load(place, typ=self.vector)
                    build.store(body.multiply_add(weight, part, total), place)

        self.for_keys(places, True, add)
        return [build.load(place, typ=self.vector) for place in kept]

    # --- elements ------------------------------------------------------------------------------

    def element(self, base: Any, index: Any, kind: ir.Type | None = None) -> Any:
        """The address of an element, of the dtype unless told."""
        return self.body.address(base, self.build.mul(index, WORD(BYTES[kind or self.kind])))

    def given(self, base: Any, index: Any) -> Any:
        """A vector of elements, in float32."""
        return converted_from(self.build, self.element(base, index), self.kind, self.vector)

    def write_vector(self, value: Any, base: Any, index: Any) -> None:
        """Write a vector of floats, in the dtype."""
        made = converted_to(self.build, value, self.kind)
        self.build.store(made, self.element(base, index), align=BYTES[self.kind])

    def fetch_row(self, row: Any) -> None:
        """Let the processor read a row of a head soon."""
        for line in range(0, self.size * BYTES[self.kind], 64):
            self.body.fetch(self.body.address(row, line))

    def _at_score(self, h: int, index: Any) -> Any:
        build = self.build
        place = build.add(build.mul(self._room, WORD(h)), index)
        return self.body.address(self._scores, build.mul(place, WORD(4)))

    def _vector_of_scores(self, h: int, turn: Any) -> Any:
        place = self._at_score(h, self.build.mul(turn, WORD(self.lanes)))
        return self.build.load(place, typ=self.vector, align=4)

    def _folded(self, kind: str, value: Any) -> Any:
        """The sum of a vector's numbers ("fadd"), or the largest ("fmax")."""
        build, body = self.build, self.body
        name = f"llvm.vector.reduce.{kind}.v{self.lanes}f32"
        if kind == "fadd":
            known = body.intrinsic(name, FLOAT, FLOAT, self.vector)
            return build.call(known, [FLOAT(-0.0), value], fastmath=("reassoc",))
        return build.call(body.intrinsic(name, FLOAT, self.vector), [value])

    def _in_all_lanes(self, kind: str, value: Any) -> Any:
        """The same, in each lane."""
        return repeated(self.build, self._folded(kind, value), self.lanes)

    def every(self, number: float) -> Any:
        """A number in all lanes."""
        return ir.Constant(self.vector, [number] * self.lanes)

    def _or(self, value: Any, number: float, other: float) -> Any:
        """A vector, but for one number, in whose place another comes."""
        is_it = self.build.fcmp_ordered("==", value, self.every(number))
        return self.build.select(is_it, self.every(other), value)

    def _exponential(self, x: Any) -> Any:
        """exp(x) for x <= 0, or NaN."""
        build, body, every = self.build, self.body, self.every
        integers = ir.VectorType(NUMBER, self.lanes)
        is_small = build.fcmp_ordered("<", x, every(_LEAST))
        is_nan = build.fcmp_unordered("uno", x, x)
        kept = build.select(build.or_(is_small, is_nan), every(0.0), x)
        rint = body.intrinsic(f"llvm.rint.v{self.lanes}f32", self.vector, self.vector)
        n = build.call(rint, [build.fmul(kept, every(1 / math.log(2)))])
        r = kept
        for part in _LOGARITHM:
            r = body.multiply_add(n, every(-part), r)
        p = every(_COEFFICIENTS[0])
        for coefficient in _COEFFICIENTS[1:]:
            p = body.multiply_add(p, r, every(coefficient))
        p = build.fadd(body.multiply_add(build.fmul(r, r), p, r), every(1.0))
        bits = build.add(build.fptosi(n, integers), ir.Constant(integers, [127] * self.lanes))
        power = build.shl(bits, ir.Constant(integers, [23] * self.lanes))
        made = build.fmul(p, build.bitcast(power, self.vector))
        made = build.select(is_small, every(0.0), made)
        return build.select(is_nan, x, made)
