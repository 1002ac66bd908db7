"""Ragged attention in JAX, as loops over sequences, blocks of queries, and blocks of pages.

Loops end where sequences do, so the work is that of the keys that are there. Softmax is computed as
in flash attention: each block's maximum and sum correct those before.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_QUERIES, _KEYS = 16, 256  # of a block


def attend(
    q: Any,
    kv_pages: Any,
    kv_lens: Any,
    page_indices: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    *,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    mask_value: float,
    k_scale: float | None,
    v_scale: float | None,
) -> Any:
    """Arguments and result are those of `ragged_paged_attention`."""
    tokens, heads, size = q.shape
    _, page, both, _ = kv_pages.shape
    kv_heads = both // 2
    rows, pages = min(_QUERIES, tokens), min(max(_KEYS // page, 1), page_indices.shape[1])
    keys = pages * page
    padded = jnp.pad(q, ((0, rows), (0, 0), (0, 0)))  # blocks may go beyond the last token
    indices = jnp.pad(page_indices, ((0, 0), (0, -page_indices.shape[1] % pages)))
    kv_lens, cu_q_lens, indices = (x.astype(jnp.int32) for x in (kv_lens, cu_q_lens, indices))

    def scaled(x: Any, scale: float | None) -> Any:
        x = x if scale is None else x.astype(jnp.float32) * scale
        return x.astype(q.dtype)

    def of_block(block: Any, places: Any, sequence: Any, state: Any) -> Any:
        """Let queries [rows, kv heads, group, size] see one more block of keys."""
        queries, number = block
        peak, total, sums = state
        numbers = lax.dynamic_slice(indices, (sequence, number * pages), (1, pages))[0]
        found = kv_pages[numbers].reshape(keys, kv_heads, 2, size)
        key = number * keys + jnp.arange(keys, dtype=jnp.int32)
        is_key = key < kv_lens[sequence]
        k = scaled(found[:, :, 0], k_scale)
        # Pages may hold anything behind a sequence's keys: 0 times a NaN would be one.
        v = scaled(jnp.where(is_key[:, None, None], found[:, :, 1], 0), v_scale)
        scores = jnp.einsum("rhgd,khd->hgrk", queries, k, preferred_element_type=jnp.float32)
        scores = scores * sm_scale
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        seen = (key <= places[:, None]) & is_key
        if sliding_window is not None:
            seen &= key > places[:, None] - sliding_window
        scores = jnp.where(seen, scores, mask_value)
        highest = jnp.maximum(peak, scores.max(-1))
        weights, before = jnp.exp(scores - highest[..., None]), jnp.exp(peak - highest)
        more = jnp.einsum(
            "hgrk,khd->hgrd", weights.astype(q.dtype), v, preferred_element_type=jnp.float32
        )
        return highest, total * before + weights.sum(-1), sums * before[..., None] + more

    def of_queries(number: Any, sequence: Any, out: Any) -> Any:
        first, end = cu_q_lens[sequence], cu_q_lens[sequence + 1]
        start = first + number * rows
        queries = lax.dynamic_slice(padded, (start, 0, 0), (rows, heads, size))
        queries = queries.reshape(rows, kv_heads, heads // kv_heads, size)
        # The keys that the tokens themselves have.
        place = kv_lens[sequence] - (end - start)
        places = place + jnp.arange(rows, dtype=jnp.int32)
        least = 0 if sliding_window is None else jnp.maximum(place - sliding_window + 1, 0) // keys
        most = -(-jnp.minimum(place + rows, kv_lens[sequence]) // keys)
        shape = (kv_heads, heads // kv_heads, rows)
        state = (
            jnp.full(shape, -jnp.inf, jnp.float32),
            jnp.zeros(shape, jnp.float32),
            jnp.zeros((*shape, size), jnp.float32),
        )
        _, total, sums = lax.fori_loop(
            jnp.asarray(least, jnp.int32),
            most,
            lambda i, state: of_block((queries, i), places, sequence, state),
            state,
        )
        made = (sums / total[..., None]).astype(q.dtype)
        made = made.transpose(2, 0, 1, 3).reshape(rows, heads, size)
        known = lax.dynamic_slice(out, (start, 0, 0), made.shape)
        is_token = start + jnp.arange(rows, dtype=jnp.int32) < end
        made = jnp.where(is_token[:, None, None], made, known)
        return lax.dynamic_update_slice(out, made, (start, 0, 0))

    def of_sequence(sequence: Any, out: Any) -> Any:
        count = cu_q_lens[sequence + 1] - cu_q_lens[sequence]
        blocks = -(-count // rows)
        return lax.fori_loop(
            jnp.int32(0), blocks, lambda number, out: of_queries(number, sequence, out), out
        )

    sequences = num_seqs.reshape(-1)[0].astype(jnp.int32)
    out = lax.fori_loop(jnp.int32(0), sequences, of_sequence, jnp.zeros_like(padded))
    return jax.lax.slice_in_dim(out, 0, tokens)
