"""Scaled dot-product attention and its gradients, and torch's fused kernel for the CPU.

The rule writes dot, scale, mask, softmax, dot, with float32 accumulation. XLA fuses the operations
between the dots.
"""

import math

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import computed_in, spread
from xla_dynamo.lowerings.cpu.products import product
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.table import Context, aten, lowers


def scale_of(query: Value, scale: float | None) -> float:
    """The factor of the scores: one over the root of the head size unless told."""
    return 1 / math.sqrt(build.shape_of(query)[3]) if scale is None else scale


def attention_scores(
    ctx: Context, query: Value, key: Value, is_causal: bool, mask: Value | None, scale: float | None
) -> Value:
    """Scaled query @ key.mT with masked elements at -inf, in the dtype of the computation.

    A boolean mask says where to attend, another one is added. Causal means that query i sees the
    keys 0 to i, also where there are more keys than queries.
    """
    key = repeat_heads(key, build.shape_of(query)[1])
    scores = product(ctx, query, key, computed_in(query), transpose_y=True)
    scores = hlo.multiply(scores, build.full_like(scores, scale_of(query, scale)))
    blocked = build.full_like(scores, -math.inf)
    if mask is not None and build.dtype_of(mask) is torch.bool:
        scores = build.where(build.broadcast_to(mask, build.shape_of(scores)), scores, blocked)
    elif mask is not None:
        scores = hlo.add(*spread([scores, mask], build.dtype_of(scores)))
    if is_causal:
        row, column = (build.iota(build.shape_of(scores), d, torch.int32) for d in (2, 3))
        scores = build.where(build.compare(row, column, "GE"), scores, blocked)
    return scores


def attend(
    ctx: Context, scores: Value, value: Value, kept: Value | None = None
) -> tuple[Value, Value]:
    """softmax(scores) @ value and the logarithm of the softmax's denominator.

    Rows without any key give 0 for both, as torch's fused kernels do. `kept`, the scaled dropout
    mask, multiplies the weights after their sum is taken.
    """
    peak = build.reduce(scores, [3], "max")
    peak = build.where(
        build.compare(peak, build.full_like(peak, -math.inf), "EQ"), build.full_like(peak, 0), peak
    )
    weights = hlo.exponential(hlo.subtract(scores, _along_keys(peak, scores)))
    total = build.reduce(weights, [3], "sum")
    total = build.where(
        build.compare(total, build.full_like(total, 0), "EQ"), build.full_like(total, 1), total
    )
    if kept is not None:
        weights = hlo.multiply(weights, kept)
    value = repeat_heads(value, build.shape_of(scores)[1])
    weights = build.cast(weights, build.dtype_of(value))
    output = product(ctx, weights, value, computed_in(value))
    return hlo.divide(output, _along_keys(total, output)), hlo.add(peak, hlo.log(total))


def attention_gradients(
    ctx: Context,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    output: Value,
    logsumexp: Value,
    scores: Value,
    scale: float | None,
    kept: Value | None = None,
) -> tuple[Value, Value, Value, Value]:
    """The gradients of query, key, value and scores, from those of the output.

    The weights are computed anew from scores and logsumexp, as in the fused kernels.
    """
    wide, narrow, heads = build.dtype_of(scores), build.dtype_of(query), build.shape_of(query)[1]
    weights = hlo.exponential(hlo.subtract(scores, _along_keys(logsumexp, scores)))
    dropped = weights if kept is None else hlo.multiply(weights, kept)
    dropped = build.cast(dropped, narrow)
    grad_value = product(ctx, dropped, grad, wide, transpose_x=True)
    grad_weights = product(ctx, grad, repeat_heads(value, heads), wide, transpose_y=True)
    if kept is not None:
        grad_weights = hlo.multiply(grad_weights, kept)
    agreement = build.reduce(hlo.multiply(*spread([grad, output], wide)), [3], "sum")
    grad_scores = hlo.multiply(
        weights, hlo.subtract(grad_weights, _along_keys(agreement, grad_weights))
    )
    scaled = hlo.multiply(grad_scores, build.full_like(grad_scores, scale_of(query, scale)))
    scaled = build.cast(scaled, narrow)
    grad_query = product(ctx, scaled, repeat_heads(key, heads), wide)
    grad_key = product(ctx, scaled, query, wide, transpose_x=True)
    return grad_query, _sum_heads(grad_key, key), _sum_heads(grad_value, value), grad_scores


def repeat_heads(x: Value, heads: int) -> Value:
    """Grouped queries: each head of keys or values serves several heads of queries in a row."""
    batch, own, *rest = build.shape_of(x)
    if own == heads:
        return x
    grouped = build.broadcast_in_dim(x, [batch, own, heads // own, *rest], [0, 1, 3, 4])
    return build.reshape(grouped, [batch, heads, *rest])


def _sum_heads(x: Value, like: Value) -> Value:
    """The transpose of repeat_heads."""
    batch, heads, *rest = build.shape_of(x)
    own = build.shape_of(like)[1]
    if own == heads:
        return x
    return build.reduce(build.reshape(x, [batch, own, heads // own, *rest]), [2], "sum")


def _along_keys(x: Value, like: Value) -> Value:
    """One number of each query, repeated for each key (or feature)."""
    return build.broadcast_in_dim(x, build.shape_of(like), [0, 1, 2])


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _scaled_dot_product_flash_attention_for_cpu(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    if dropout_p:
        raise ValueError("torch's kernel takes no dropout")
    operands = (query, key, value, attn_mask)
    if results := call(ctx, "attention", *operands, is_causal=is_causal, scale=scale):
        return results[0], build.cast(results[1], ctx.out[1].dtype)
    output, logsumexp = attend(
        ctx, attention_scores(ctx, query, key, is_causal, attn_mask, scale), value
    )
    # For float64, torch 2.11 promises sums in float32.
    return build.cast(output, build.dtype_of(query)), build.cast(logsumexp, ctx.out[1].dtype)


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _scaled_dot_product_flash_attention_for_cpu_backward(
    ctx: Context,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, ...]:
    logsumexp = build.cast(logsumexp, computed_in(query))
    operands = (grad_out, query, key, value, out, logsumexp, attn_mask)
    if results := call(ctx, "attention_gradients", *operands, is_causal=is_causal, scale=scale):
        return tuple(results)
    scores = attention_scores(ctx, query, key, is_causal, attn_mask, scale)
    grads = attention_gradients(ctx, grad_out, query, key, value, out, logsumexp, scores, scale)
    return tuple(build.cast(g, build.dtype_of(query)) for g in grads[:3])
