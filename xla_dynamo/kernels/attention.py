"""torch's fused attention for the CPU, whose scores never leave the cache."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.kernels.library_calls import PythonKernel, may_plan, python_kernel
from xla_dynamo.kernels.product_choices import are_measured
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.shapes import reshape
from xla_dynamo.lowerings.builders.values import (
    Value,
    defining_name,
    defining_operation,
    dtype_of,
    numel_of,
    rank_of,
    shape_of,
)
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN_BFLOAT16, TORCH
from xla_dynamo.runtime.cpu import native_code, paged_attention
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.torch_shares import alone, slices, tensor_at

# Multiplications of one of attention's two products below which a call costs more than it gains:
# `python -m bench.forms`, with and without `--dtype bfloat16`.
FEWEST_IN_ATTENTION = 1 << 23
# Keys up to which XLA's products and softmax cost less in bfloat16: torch's kernel packs blocks of
# keys.
MOST_KEYS_IN_BFLOAT16 = 256
# The same where calls and products are plans: multiplications, and keys in training.
FEWEST_IN_PLAN, MOST_KEYS_BESIDE_PLAN = 1 << 20, 256
# Queries up to which our own function attends, as in decoding. XLA converts all keys and values of
# bfloat16, repeats those of few heads, and reads what is masked (`python -m bench.decode`). More
# queries read a key once for all of them in torch's kernel (bench/RESULTS.md).
MOST_QUERIES, FEWEST_OF_FEW_QUERIES = 4, 1 << 16
# Heads behind the lengths, as a linear layer leaves them, and sums likewise.
HEADS_LAST, SUMS = (0, 2, 1, 3), (0, 2, 1)

aten = torch.ops.aten


def is_of_few(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], mask: Sequence[int] | None
) -> bool:
    """Whether our own function can attend, and is to, by the shapes; the mask's is compact."""
    few, whole = 0 < query[2] <= MOST_QUERIES, query[3] % paged_attention.LANES == 0
    fits = query[3] == value[3] and (mask is None or mask[3] == key[2])
    return few and whole and fits and 0 not in (*query, *key) and native_code.can_compile()


@dataclasses.dataclass(frozen=True)
class AttentionCall(PythonKernel):
    """The common part of both kernels of attention.

    Attributes:
        query: its shape [batch, heads, length, size].
        key: the same.
        value: the same.
        mask: that of the mask, with size 1 where it is broadcast; None without one. It is
            row-major.
        dtype: of the three.
        mask_dtype: of the mask.
        causal: whether query i sees the keys 0 to i alone.
        scale: the factor of the scores; None for torch's.
    """

    libraries: ClassVar = {torch.float32: frozenset({TORCH}), torch.bfloat16: frozenset({TORCH})}

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: tuple[int, ...] | None
    dtype: torch.dtype
    mask_dtype: torch.dtype
    causal: bool
    scale: float | None

    def check(self) -> None:
        """Grouped queries have several heads for one of the keys; a mask fits the scores."""
        shapes = [self.query, self.key, self.value, self.mask or self.query]
        if {*map(len, shapes)} != {4}:
            self.refuse(f"the shapes are {shapes}")
        if self.key[1] == 0 or self.query[1] % self.key[1] or self.key[:3] != self.value[:3]:
            self.refuse(f"keys {self.key} and values {self.value} for queries {self.query}")
        scores = (*self.query[:3], self.key[2])
        if any(n not in (1, full) for n, full in zip(self.mask or scores, scores, strict=True)):
            self.refuse(f"a mask {self.mask} for scores {scores}")

    @classmethod
    def of(
        cls,
        ctx: Context,
        inputs: Sequence[Value],
        mask: Value | None,
        is_causal: bool,
        scale: float | None,
    ) -> Self | None:
        """The specification, if the kernel is to attend from a query to keys and values.

        These are the first of `inputs`; others have to be of their dtype.
        """
        (dtype, *others) = {dtype_of(x) for x in inputs}
        if others or (mask is not None and dtype_of(mask) not in (dtype, torch.float32)):
            return None
        query, key, value = map(shape_of, inputs[:3])
        compact = None if mask is None else _compact(mask)[1]
        fewest, most = FEWEST_IN_ATTENTION, 0 if ctx.trains else MOST_KEYS_IN_BFLOAT16
        if may_plan(ctx) and are_measured():
            fewest, most = FEWEST_IN_PLAN, MOST_KEYS_BESIDE_PLAN if ctx.trains else 0
            if not ctx.trains and is_of_few(query, key, value, compact):
                fewest = FEWEST_OF_FEW_QUERIES
        is_short = dtype is torch.bfloat16 and key[2] <= most
        if is_short and ONEDNN_BFLOAT16 in ctx.libraries:
            return None
        if numel_of(inputs[0]) * key[2] < fewest:
            return None
        mask_dtype = dtype if mask is None else dtype_of(mask)
        factor = None if scale is None else float(scale)
        return cls(query, key, value, compact, dtype, mask_dtype, is_causal, factor)

    def call_on(
        self,
        ctx: Context,
        values: Sequence[Value],
        mask: Value | None,
        types: Sequence[ir.Type],
        orders: Sequence[Sequence[int]],
    ) -> list[Value]:
        """Write a call; `orders` are those of the results' dimensions in memory."""
        masks = [] if mask is None else [reshape(_compact(mask)[0], self.mask or ())]
        lasts = [HEADS_LAST if rank_of(x) == 4 else SUMS for x in values]
        given = [*lasts, *(range(4) for _ in masks)]
        return self.call(ctx, [*values, *masks], given, types, orders)

    @property
    def is_of_few(self) -> bool:
        """Whether our own function attends, where calls are plans."""
        return is_of_few(self.query, self.key, self.value, self.mask)

    @property
    def sums(self) -> tuple[int, ...]:
        """The shape of the logarithms of the sums, which are float32."""
        return self.query[:3]

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of the output."""
        return *self.sums, self.value[3]

    def shares(self, threads: int) -> Sequence[Any]:
        """Ranges of the batch, or of the heads of keys, each with the queries that it serves."""
        batch, heads = self.key[:2]
        if batch % threads == 0 or batch > heads:
            return [(part, slice(0, heads)) for part in slices(batch, threads)]
        return [(slice(0, batch), part) for part in slices(heads, threads)]

    def at(
        self, share: Any, address: Memory, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """A share of what lies at an address."""
        order = SUMS if len(shape) == 3 else HEADS_LAST
        return self.part(tensor_at(address, shape, order, dtype or self.dtype), share)

    def part(self, tensor: torch.Tensor, share: Any) -> torch.Tensor:
        """A share of a tensor; of a mask that is the same for all heads, all of it."""
        batch, heads = share
        several = tensor.shape[1] // self.key[1]
        if tensor.shape[0] > 1:
            tensor = tensor[batch]
        if tensor.shape[1] > 1:
            tensor = tensor[:, heads.start * several : heads.stop * several]
        return tensor

    def settings(self, share: Any, addresses: Sequence[Memory]) -> dict[str, Any]:
        """What torch's operators take beside tensors; the mask is the last operand."""
        mask = None
        if self.mask is not None:
            mask = self.part(tensor_at(addresses[-1], self.mask, range(4), self.mask_dtype), share)
        return {"attn_mask": mask, "is_causal": self.causal, "scale": self.scale}


def _compact(mask: Value) -> tuple[Value, tuple[int, ...]]:
    """A mask, and its shape in four dimensions, of size 1 where it was broadcast.

    torch's kernel broadcasts it again.
    """
    shape = shape_of(mask)
    if defining_name(mask) == "stablehlo.broadcast_in_dim":
        op = mask.owner
        (source,) = op.operands
        dims = [int(d) for d in ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])]
        own = dict(zip(dims, shape_of(source), strict=True))
        mask, shape = source, tuple(own.get(d, 1) for d in range(len(shape)))
    return mask, (*[1] * (4 - len(shape)), *shape)


def unrepeated(key: Value, value: Value) -> tuple[Value, Value]:
    """Keys and values without repeats, where each head was repeated for several heads of queries.

    torch's kernel reads a head as often as queries want it.
    """
    found = _unrepeated(key), _unrepeated(value)
    return found if shape_of(found[0])[:3] == shape_of(found[1])[:3] else (key, value)


def _unrepeated(x: Value) -> Value:
    op = defining_operation(x)
    if op is None or op.name != "stablehlo.reshape":
        return x
    repeated = op.operands[0]
    if defining_name(repeated) != "stablehlo.broadcast_in_dim" or rank_of(repeated) != 5:
        return x
    (source,) = repeated.owner.operands
    batch, heads, times, *rest = shape_of(repeated)
    dims = list(ir.DenseI64ArrayAttr(repeated.owner.attributes["broadcast_dimensions"]))
    own = dict(zip(dims, shape_of(source), strict=True))
    is_repeat = own.pop(2, 1) == 1 and [*own.values()] == [batch, heads, *rest]
    if not is_repeat or shape_of(x) != (batch, heads * times, *rest):
        return x
    return reshape(source, [batch, heads, *rest])


@python_kernel
@dataclasses.dataclass(frozen=True)
class Attention(AttentionCall):
    """softmax(query @ key.mT * scale + mask) @ value.

    Operands are query, key, value and, last, the mask; results the output and the logarithms of
    the sums.
    """

    name = "attention"

    @classmethod
    def accept(
        cls,
        ctx: Context,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None,
        **settings: Any,
    ) -> Self | None:
        if not ctx.trains:  # gradients are for all heads
            key, value = unrepeated(key, value)
        return cls.of(ctx, (query, key, value), mask, **settings)

    def emit(self, ctx: Context, *operands: Any) -> list[Value]:
        """The output, like the query, and the logarithms of the sums."""
        query, key, value, mask = operands
        if shape_of(key)[1] != self.key[1]:
            key, value = unrepeated(key, value)
        operands = query, key, value, mask
        types = [tensor_type(self.output, self.dtype), tensor_type(self.sums, torch.float32)]
        return self.call_on(ctx, operands[:-1], operands[-1], types, [HEADS_LAST, SUMS])

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute a range."""
        shapes = (self.query, self.key, self.value)
        with alone():
            inputs = [self.at(share, *pair) for pair in zip(operands, shapes, strict=False)]
            output, sums = aten._scaled_dot_product_flash_attention_for_cpu(
                *inputs, **self.settings(share, operands)
            )
            self.at(share, results[0], self.output).copy_(output)
            self.at(share, results[1], self.sums, torch.float32).copy_(sums)
