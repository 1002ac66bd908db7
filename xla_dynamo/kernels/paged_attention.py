"""Attention of a few tokens to a paged cache, by machine code of ours.

XLA gathers the keys and values of all requests first, repeats heads, and attends to all of them
under a mask, so that its time grows with the square of the number of requests.
"""

import ctypes
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.kernels.libraries import can_execute_packed
from xla_dynamo.kernels.library_calls import (
    FunctionPlan,
    PythonKernel,
    ScriptKernel,
    python_kernel,
)
from xla_dynamo.kernels.onednn_product import MOST_ROWS as FEW_ROWS
from xla_dynamo.lowerings.builders.build import cast
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.shapes import reshape
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import TORCH_PLANS
from xla_dynamo.runtime.cpu import paged_attention
from xla_dynamo.runtime.cpu.call_scripts import number, slot
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.shares import threads

# Tokens up to which it is about as fast as XLA's products even if all are of one request, whose
# keys these read once for all of them (bench/RESULTS.md).
MOST_TOKENS = 256


@python_kernel
@dataclasses.dataclass(frozen=True)
class PagedAttention(PythonKernel):
    """Attention of each token to the keys of its request.

    Attributes:
        dtype: of all arrays of numbers.
        tokens: how many queries there are.
        requests: how many there may be.
        keys: how many are read, of all requests.
        heads: of queries.
        kv_heads: of keys and values.
        size: of a head.
        first: the row of the cache from which on rows are counted.
        between: rows from a token's keys to its values.
        scale: of the scores.
    """

    name = "paged_attention"
    libraries: ClassVar = {
        dtype: frozenset({TORCH_PLANS}) for dtype in (torch.float32, torch.bfloat16)
    }
    is_bounded: ClassVar[bool] = True

    dtype: torch.dtype
    tokens: int
    requests: int
    keys: int
    heads: int
    kv_heads: int
    size: int
    first: int
    between: int
    scale: float

    def check(self) -> None:
        """Each head of keys serves as many of queries, and vectors are whole."""
        sizes = self.tokens, self.requests, self.keys, self.heads, self.kv_heads, self.size
        if min(sizes) < 1 or self.heads % self.kv_heads or self.size % paged_attention.LANES:
            self.refuse(f"tokens, requests, keys, heads and their size are {sizes}")
        if min(self.first, self.between) < 0 or not math.isfinite(self.scale):
            self.refuse(f"rows {self.first} and {self.between}, scores times {self.scale}")

    @classmethod
    def accept(cls, ctx: Context, query: Value, *others: Value, **settings: Any) -> Self | None:
        keys, values, rows, read, starts, _, mask = others
        _, heads, tokens, size = shape_of(query)
        kv_heads, count = shape_of(keys)[1], shape_of(read)[0]
        fits = heads % kv_heads == 0 and size % paged_attention.LANES == 0
        alike = {dtype_of(x) for x in (query, keys, values, rows)} == {dtype_of(query)}
        added = dtype_of(mask).is_floating_point and shape_of(mask) == (1, 1, tokens, count)
        # What is bounded must be the same operations at all sizes.
        few = tokens > 0 and (tokens <= MOST_TOKENS or ctx.target.bounded)
        requests = shape_of(starts)[0] - 1
        pays = few and count > 0 and requests > 0 and can_execute_packed()
        if not (fits and alike and added and pays):
            return None
        sizes = tokens, requests, count, heads, kv_heads, size
        return cls(dtype_of(query), *sizes, **settings)

    def emit(self, ctx: Context, *operands: Any) -> Value:
        query, keys, values, rows, read, starts_q, starts_k, mask = operands
        numbers = [reshape(x, shape_of(x)[1:]) for x in (query, keys, values)]
        indices = cast(read, torch.int64), *(cast(x, torch.int32) for x in (starts_q, starts_k))
        given = [*numbers, rows, *indices, reshape(mask, [self.tokens, self.keys])]
        heads_second = (1, 0, 2)
        orders = [*[heads_second] * 3, (0, 1, 2), (0,), (0,), (0,), (0, 1)]
        given[-1] = cast(given[-1], self.dtype)
        type_ = tensor_type([self.heads, self.tokens, self.size], self.dtype)
        (made,) = self.call(ctx, given, orders, [type_], [heads_second])
        return reshape(made, shape_of(query))

    def function(self) -> Any:
        """The function of ctypes that computes a part.

        Raises:
            NativeCodeError: it cannot be compiled here.
        """
        sizes = self.heads, self.kv_heads, self.size
        return paged_attention.function(self.dtype, *sizes, self.between, self.scale)

    def offsets(self) -> list[int]:
        """Of each operand and of the result, where the function begins to read, in bytes."""
        row = self.kv_heads * self.size * self.dtype.itemsize
        return [0, 0, 0, self.first * row, 0, 0, 0, 0, 0]

    def sizes(self, part: int, parts: int) -> list[int]:
        """The numbers that the function takes for a part."""
        return [self.tokens, self.requests, self.keys, part, parts]

    def shares(self, threads: int) -> Sequence[tuple[int, int]]:
        """Parts by their numbers, and how many there are."""
        return [(part, threads) for part in range(threads)]

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute a part."""
        memory = (*operands, *results)
        addresses = [start + offset for start, offset in zip(memory, self.offsets(), strict=True)]
        if self.function()(*map(ctypes.c_int64, (*addresses, *self.sizes(*share)))):
            raise MemoryError("there is no memory for scores")


@register
@dataclasses.dataclass(frozen=True)
class PlannedPagedAttention(ScriptKernel):
    """The same in XLA's threads, with no Python in the way.

    Attributes:
        call: the call in Python whose place it takes.
    """

    name = "planned_paged_attention"
    replaces = PagedAttention.name
    reads_plain = TORCH_PLANS

    call: PagedAttention

    @property
    def packs(self) -> bool:
        """It has no weights."""
        return False

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self:
        """The specification of a call in Python."""
        return cls(PagedAttention.of_call(op))

    def packed(self, *weights: torch.Tensor) -> FunctionPlan:
        """The plan of a call."""
        # The array of plans comes first.
        addresses = [slot(1 + i, offset) for i, offset in enumerate(self.call.offsets())]
        shares = self.call.shares(2 * threads())  # some begin later than others
        arguments = [[*addresses, *map(number, self.call.sizes(*share))] for share in shares]
        # Between calls with more tokens XLA's own threads have work to do.
        stays = self.call.tokens <= FEW_ROWS
        return FunctionPlan(self.call.function(), arguments, stays=stays)
