"""The fused attention operators of other devices than the CPU, which return more than one needs.

Our own key takes the place of their random state, so a backward drops the same elements as its
forward.
"""

from typing import Any

import torch

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.rules.attention.attention import (
    attend,
    attention_gradients,
    attention_scores,
)
from xla_dynamo.lowerings.rules.random.random import bits_of_key
from xla_dynamo.lowerings.table import Context, aten, lowers


def _kept(key: Value, scores: Value, dropout_p: float) -> Value:
    """The dropout mask over scores, scaled so that the expected sum stays."""
    drawn = bits_of_key(key, build.shape_of(scores), torch.uint32)
    bound = min(int(dropout_p * 2**32), 2**32 - 1)
    stays = build.compare(drawn, build.full_like(drawn, bound), "GE")
    factor = 0 if dropout_p >= 1 else 1 / (1 - dropout_p)
    return build.where(stays, build.full_like(scores, factor), build.full_like(scores, 0))


def _key_parts(ctx: Context, dropout_p: float, promised: tuple[Any, Any]) -> tuple[Value, ...]:
    """A fresh key, and the same in the two tensors that torch hands to the backward."""
    key = ctx.random_key() if dropout_p else build.full([2], 0, torch.uint64)
    seed, offset = (_as(build.slice_dim(key, 0, i, i + 1), promised[i]) for i in (0, 1))
    return key, seed, offset


def _as(word: Value, promised: Any) -> Value | None:
    """One word of a key in the shape and dtype of torch's seed or offset (two words, or one)."""
    if promised is None:
        return None
    word = build.bitcast(word, promised.dtype)
    return build.broadcast_to(build.reshape(word, [1] * promised.dim()), promised.shape)


def _key_from(seed: Value, offset: Value) -> Value:
    words = [build.reshape(x, [build.numel_of(x)]) for x in (seed, offset)]
    first = [build.bitcast(build.slice_dim(w, 0, 0, 1), torch.uint64) for w in words]
    return build.concatenate(first, 0)


def _forward(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    bias: Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    random: tuple[Any, Any],
) -> tuple[Value, Value, Value | None, Value | None]:
    """Output, logsumexp in torch's shape, seed and offset."""
    state, seed, offset = _key_parts(ctx, dropout_p, random)
    scores = attention_scores(ctx, query, key, is_causal, bias, scale)
    kept = _kept(state, scores, dropout_p) if dropout_p else None
    output, logsumexp = attend(ctx, scores, value, kept)
    return build.cast(output, build.dtype_of(query)), _fitted(ctx, logsumexp), seed, offset


def _fitted(ctx: Context, logsumexp: Value) -> Value:
    """One kernel pads the queries to a multiple of 32, another adds a dimension, or wants none."""
    promised = ctx.out[1]
    logsumexp = build.cast(logsumexp, promised.dtype)
    if promised.dim() == 4:
        return build.reshape(logsumexp, promised.shape)
    more = promised.shape[2] - build.shape_of(logsumexp)[2]
    return build.pad(logsumexp, float("inf"), [0, 0, 0], [0, 0, more])


def _backward(
    ctx: Context,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    bias: Value | None,
    out: Value,
    logsumexp: Value,
    seed: Value,
    offset: Value,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    wants_bias: bool = False,
) -> tuple[Value | None, ...]:
    """The gradients of query, key, value and bias, the last one only if it is wanted."""
    scores = attention_scores(ctx, query, key, is_causal, bias, scale)
    kept = _kept(_key_from(seed, offset), scores, dropout_p) if dropout_p else None
    if build.rank_of(logsumexp) == 4:
        logsumexp = build.reshape(logsumexp, build.shape_of(logsumexp)[:3])
    logsumexp = build.slice_dim(logsumexp, 2, 0, build.shape_of(query)[2])
    grads = attention_gradients(ctx, grad, query, key, value, out, logsumexp, scores, scale, kept)
    *inputs, grad_bias = (build.cast(g, build.dtype_of(query)) for g in grads)
    return *inputs, _sum_to(grad_bias, bias) if wants_bias and bias is not None else None


def _sum_to(x: Value, like: Value) -> Value:
    """The gradient of a bias that was broadcast over the scores."""
    lead = build.rank_of(x) - build.rank_of(like)
    shape = [1] * lead + list(build.shape_of(like))
    over = [d for d, n in enumerate(shape) if n == 1 and build.shape_of(x)[d] != 1]
    wide = build.cast(x, torch.float32)
    return build.cast(
        build.reshape(build.reduce(wide, over, "sum"), build.shape_of(like)), build.dtype_of(like)
    )


@lowers(aten._scaled_dot_product_efficient_attention.default)
def _scaled_dot_product_efficient_attention(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    settings = (dropout_p, is_causal, scale, ctx.out[2:4])
    return _forward(ctx, query, key, value, attn_bias, *settings)


@lowers(aten._scaled_dot_product_efficient_attention_backward.default)
def _scaled_dot_product_efficient_attention_backward(
    ctx: Context,
    grad_out_: Value,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    out: Value,
    logsumexp: Value,
    philox_seed: Value,
    philox_offset: Value,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    saved = (out, logsumexp, philox_seed, philox_offset, dropout_p, is_causal, scale)
    return _backward(ctx, grad_out_, query, key, value, attn_bias, *saved, grad_input_mask[3])


def _forward_with_lengths(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    bias: Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Any, ...]:
    """The nine results of flash, cuDNN and user-defined attention: no ragged lengths, no mask."""
    settings = (dropout_p, is_causal, scale, ctx.out[6:8])
    output, logsumexp, *random = _forward(ctx, query, key, value, bias, *settings)
    *lengths, mask = [
        None if p is None else build.full(p.shape, 0, p.dtype) for p in (*ctx.out[2:4], ctx.out[8])
    ]
    return output, logsumexp, *lengths, *ctx.out[4:6], *random, mask


@lowers(aten._scaled_dot_product_flash_attention.default)
def _scaled_dot_product_flash_attention(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    return _forward_with_lengths(ctx, query, key, value, None, dropout_p, is_causal, scale)


@lowers(aten._scaled_dot_product_flash_attention_backward.default)
def _scaled_dot_product_flash_attention_backward(
    ctx: Context,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Value,
    philox_offset: Value,
    *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    saved = (out, logsumexp, philox_seed, philox_offset, dropout_p, is_causal, scale)
    return _backward(ctx, grad_out, query, key, value, None, *saved)[:3]


@lowers(aten._scaled_dot_product_cudnn_attention.default)
def _scaled_dot_product_cudnn_attention(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    return _forward_with_lengths(ctx, query, key, value, attn_bias, dropout_p, is_causal, scale)


@lowers(aten._scaled_dot_product_cudnn_attention_backward.default)
def _scaled_dot_product_cudnn_attention_backward(
    ctx: Context,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    philox_seed: Value,
    philox_offset: Value,
    attn_bias: Value | None,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    saved = (out, logsumexp, philox_seed, philox_offset, dropout_p, is_causal, scale)
    return _backward(ctx, grad_out, query, key, value, attn_bias, *saved)[:3]


@lowers(aten._scaled_dot_product_fused_attention_overrideable.default)
def _scaled_dot_product_fused_attention_overrideable(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    return _forward_with_lengths(ctx, query, key, value, attn_bias, dropout_p, is_causal, scale)


@lowers(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def _scaled_dot_product_fused_attention_overrideable_backward(
    ctx: Context,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    grad_input_mask: list[bool],
    out: Value,
    logsumexp: Value,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Value,
    philox_offset: Value,
    *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    saved = (out, logsumexp, philox_seed, philox_offset, dropout_p, is_causal, scale)
    return _backward(ctx, grad_out, query, key, value, attn_bias, *saved, grad_input_mask[3])
