"""Attention of tokens to the keys and values of their own requests, in LLVM IR.

Keys and values lie in rows of a paged cache, but for those of the tokens themselves. Each unit of
work is a token and some of its heads that share keys and values. Nothing is read but the keys and
values of the token's request.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from llvmlite import ir

from xla_dynamo.runtime.cpu.attention_functions import AttentionWriter, side_by_side
from xla_dynamo.runtime.cpu.float_functions import BYTES
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD

NAME = "paged_attention"


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


def written(of: Attention, lanes: int) -> str:
    """The text of a module with the function of `paged_attention`, for vectors of floats."""
    module = ir.Module(NAME)
    _Writer(module, of, lanes).write()
    return str(module)


class _Writer(AttentionWriter):
    def __init__(self, module: ir.Module, of: Attention, lanes: int) -> None:
        super().__init__(
            module,
            NAME,
            [*[ADDRESS] * 9, *[WORD] * 5],
            dtype=of.dtype,
            size=of.size,
            together=side_by_side(of.heads, of.kv_heads),
            lanes=lanes,
        )
        self._of, given = of, self.body.arguments
        self._query, self._keys, self._values, self._rows, self._read = given[:5]
        self._starts_q, self._starts_k, self._mask, self._result = given[5:9]
        self._tokens, self._requests, self._all, self._part, self._parts = given[9:]

    def write(self) -> None:
        """Go through the units of one part of the work."""
        build, together = self.build, self.together
        self.take_room(self._all)
        groups = self._of.heads // together
        units = build.mul(self._tokens, WORD(groups))
        with self.body.times(self.units_of_part(units, self._part, self._parts)) as turn:
            unit = build.add(build.mul(turn, self._parts), self._part)
            token, group = build.udiv(unit, WORD(groups)), build.urem(unit, WORD(groups))
            self._unit(token, build.mul(group, WORD(together)))
        self.give_back_room()

    def _unit(self, token: Any, head: Any) -> None:
        """Some heads of a token."""
        build, body, of = self.build, self.body, self._of
        first = build.mul(build.add(build.mul(token, WORD(of.heads)), head), WORD(of.size))
        result = self.element(self._result, first)
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
                zero = self.vector(None)
                for i in range(self.together * self.vectors):
                    self.write_vector(zero, result, WORD(i * self.lanes))
            with real:
                query = self.element(self._query, first)
                self._attend(token, head, request, query, result)

    def _attend(self, token: Any, head: Any, request: Any, query: Any, result: Any) -> None:
        build, of = self.build, self._of
        self.take_query(query, of.size, of.scale)
        after = build.add(request, WORD(1))
        first_q, first_k = (
            self._start(starts, request) for starts in (self._starts_q, self._starts_k)
        )
        count = build.sub(self._start(self._starts_k, after), first_k)
        new = build.sub(self._start(self._starts_q, after), first_q)
        past = build.sub(count, new)
        shared = build.udiv(head, WORD(of.heads // of.kv_heads))
        places = _Places(first_q, first_k, past, count, shared)
        self.for_keys(places, False, self.score)
        mask = self.element(self._mask, build.add(build.mul(token, self._all), first_k))
        totals = [self.weights(h, count, mask, self.kind)[0] for h in range(self.together)]
        self.write_sums(places, totals, result, of.size)

    def for_keys(self, places: "_Places", is_values: bool, do: Callable[[Any, Any], None]) -> None:
        """Go through the cached ones, and then through those of the request's tokens."""
        build, body, of = self.build, self.body, self._of
        new, rows = (self._values, of.between) if is_values else (self._keys, 0)
        row = of.kv_heads * of.size * BYTES[self.kind]
        at = build.mul(places.shared, WORD(of.size * BYTES[self.kind]))
        base = body.address(self._rows, rows * row, at)

        def cached(key: Any) -> Any:
            place = build.mul(build.add(places.first_k, key), WORD(8))
            return body.address(base, build.mul(body.load(self._read, place), WORD(row)))

        self.for_rows(places.past, cached, do)
        with body.times(build.sub(places.count, places.past)) as number:
            place = build.mul(build.add(places.first_q, number), WORD(row))
            do(build.add(places.past, number), body.address(new, place, at))

    def _start(self, starts: Any, number: Any) -> Any:
        """Where a request starts, a word of 32 bits."""
        place = self.body.address(starts, self.build.mul(number, WORD(4)))
        return self.build.sext(self.build.load(place, typ=NUMBER, align=4), WORD)


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
