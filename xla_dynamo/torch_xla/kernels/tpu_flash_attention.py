"""JAX's kernel of flash attention for TPU, at any sizes."""

from typing import Any

import jax.numpy as jnp

_STEP = 128  # sizes of blocks, and what they divide


def flash_attention_on_tpu(
    q: Any,
    k: Any,
    v: Any,
    q_segment_ids: Any,
    kv_segment_ids: Any,
    ab: Any,
    *,
    causal: bool,
    sm_scale: float,
    block_sizes: tuple[tuple[str, int], ...],
) -> Any:
    """Attention by `jax.experimental.pallas.ops.tpu.flash_attention`.

    Numbers of queries and keys that no block divides are padded. What is padded is a segment of its
    own.

    Args:
        q: [batch, heads, queries, size].
        k: [batch, heads, keys, size].
        v: the same.
        q_segment_ids: [batch, queries], or None.
        kv_segment_ids: [batch, keys], or None.
        ab: [batch, heads, queries, keys], or None.
        causal: whether query i sees the keys 0 to i alone.
        sm_scale: a factor of the scores.
        block_sizes: by name, the largest that blocks may be.
    """
    from jax.experimental.pallas.ops.tpu.flash_attention import (
        BlockSizes,
        SegmentIds,
        flash_attention,
    )

    queries, keys = q.shape[2], k.shape[2]
    more = [-queries % _STEP, -keys % _STEP]
    if any(more) and q_segment_ids is None:
        q_segment_ids = jnp.zeros((q.shape[0], queries), jnp.int32)
        kv_segment_ids = jnp.zeros((q.shape[0], keys), jnp.int32)
    q = _padded(q, {2: more[0]})
    k, v = (_padded(x, {2: more[1]}) for x in (k, v))
    ids = None
    if q_segment_ids is not None:
        ids = SegmentIds(
            _padded(q_segment_ids, {1: more[0]}, -1), _padded(kv_segment_ids, {1: more[1]}, -1)
        )
    if ab is not None:
        ab = _padded(ab, {2: more[0], 3: more[1]})
    most = dict(block_sizes)
    of_q, of_k = (lambda name, n=n: _block(most[name], n) for n in (q.shape[2], k.shape[2]))
    sizes = BlockSizes(
        block_b=min(most["block_b"], q.shape[0]),
        block_q=of_q("block_q"),
        block_k_major=of_k("block_k_major"),
        block_k=_block(most["block_k"], of_k("block_k_major")),
        block_q_major_dkv=of_q("block_q_major_dkv"),
        block_k_major_dkv=of_k("block_k_major_dkv"),
        block_q_dkv=_block(most["block_q_dkv"], of_q("block_q_major_dkv")),
        block_k_dkv=_block(most["block_k_dkv"], of_k("block_k_major_dkv")),
        block_q_dq=of_q("block_q_dq"),
        block_k_major_dq=of_k("block_k_major_dq"),
        block_k_dq=_block(most["block_k_dq"], of_k("block_k_major_dq")),
    )
    made = flash_attention(q, k, v, ab, ids, causal=causal, sm_scale=sm_scale, block_sizes=sizes)
    return made[:, :, :queries]


def _block(most: int, size: int) -> int:
    """The largest block up to one that divides a size."""
    return next(n for n in range(min(most, size) // _STEP * _STEP, 0, -_STEP) if size % n == 0)


def _padded(x: Any, more: dict[int, int], value: int = 0) -> Any:
    return jnp.pad(x, [(0, more.get(i, 0)) for i in range(x.ndim)], constant_values=value)
