"""Attention to keys and values in pages: PyTorch/XLA's kernels for one query, and for several."""

import torch
import torch.nn.functional as F

from xla_dynamo.torch_xla.kernels.operators import operator, runs_on_tpu
from xla_dynamo.xla_builder import call_jax


@operator(
    "paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, "
    "Tensor page_indices, int pages_per_compute_block, str? megacore_mode=None, "
    "float? attn_logits_soft_cap=None) -> Tensor"
)
def paged_attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention of one query of each sequence to the keys of its pages, without a scale.

    Args:
        q: [batch, heads, size].
        k_pages: [kv heads, pages, page size, size]; each head serves as many heads of q in a row.
        v_pages: the same.
        lengths: [batch], how many keys each sequence has; without any its result is 0.
        page_indices: [batch, pages of a sequence], the numbers of each sequence's pages.
        pages_per_compute_block: for the kernel on TPU, which divides the pages of a sequence.
        megacore_mode: for the kernel on TPU: "kv_head", "batch" or None.
        attn_logits_soft_cap: caps scores by `cap * tanh(scores / cap)`.

    Returns:
        [batch, heads, size], of q's dtype.

    Raises:
        ValueError: the sizes do not fit, or `megacore_mode` is another.
    """
    if megacore_mode not in ("kv_head", "batch", None):
        raise ValueError(f"megacore_mode is 'kv_head', 'batch' or None, and not {megacore_mode!r}")
    _check(q.shape, k_pages, v_pages, lengths, page_indices)
    if runs_on_tpu(q.device.type):
        from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as kernel

        static = {
            "pages_per_compute_block": pages_per_compute_block,
            "megacore_mode": megacore_mode,
            "attn_logits_soft_cap": attn_logits_soft_cap,
        }
        operands = (q, k_pages, v_pages, lengths.int(), page_indices.int())
        found: torch.Tensor = call_jax(kernel, operands, static)
        return found.to(q.dtype)
    last = lengths.new_ones(lengths.shape)
    made = _attention(
        q[:, None], k_pages, v_pages, lengths, page_indices, last, attn_logits_soft_cap
    )
    return made[:, 0]


@operator(
    "multi_queries_paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, "
    "Tensor page_indices, Tensor effective_q_lens, int num_kv_pages_per_compute_block, "
    "int num_queries_per_compute_block, bool use_kernel=True, float? attn_logits_soft_cap=None) "
    "-> Tensor"
)
def multi_queries_paged_attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention of several queries of each sequence, its last ones, to the keys of its pages.

    A query sees the keys up to its own. There is no scale.

    Args:
        q: [batch, queries, heads, size].
        k_pages: [kv heads, pages, page size, size]; each head serves as many heads of q in a row.
        v_pages: the same.
        lengths: [batch], how many keys each sequence has, those of its queries included.
        page_indices: [batch, pages of a sequence], the numbers of each sequence's pages.
        effective_q_lens: [batch], how many queries of each sequence count.
        num_kv_pages_per_compute_block: not used.
        num_queries_per_compute_block: not used.
        use_kernel: not used.
        attn_logits_soft_cap: caps scores by `cap * tanh(scores / cap)`.

    Returns:
        [batch, queries, heads, size], of q's dtype.

    Raises:
        ValueError: the sizes do not fit.
    """
    if q.dim() != 4:
        raise ValueError(f"q is [batch, queries, heads, size], and not {tuple(q.shape)}")
    _check((q.shape[0], *q.shape[2:]), k_pages, v_pages, lengths, page_indices)
    operands = (q, k_pages, v_pages, lengths, page_indices, effective_q_lens)
    return _attention(*operands, attn_logits_soft_cap)


def _check(
    shape: tuple[int, ...],
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
) -> None:
    pages = tuple(k_pages.shape)
    fits = len(shape) == 3 and len(pages) == 4 and pages == tuple(v_pages.shape)
    if not fits or shape[1] % pages[0] or shape[2] != pages[3]:
        raise ValueError(
            "q is [batch, heads, size], and k_pages and v_pages [kv heads, pages, page size, size] "
            f"with kv heads that divide the heads, and not {tuple(shape)}, {pages} and "
            f"{tuple(v_pages.shape)}"
        )
    if lengths.shape != shape[:1] or page_indices.dim() != 2 or len(page_indices) != shape[0]:
        raise ValueError(
            f"lengths is [batch] and page_indices [batch, pages], with a batch of {shape[0]}, and "
            f"not {tuple(lengths.shape)} and {tuple(page_indices.shape)}"
        )


def _attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    counts: torch.Tensor,
    soft_cap: float | None,
) -> torch.Tensor:
    """Attention of q [batch, queries, heads, size], of which `counts` [batch] count."""
    # Pages may hold anything behind a sequence's keys: 0 times a NaN would be one.
    keys = page_indices.shape[1] * k_pages.shape[2]
    key = torch.arange(keys, device=q.device)
    is_key = (key < lengths[:, None])[:, None, :, None]
    k, v = (
        torch.where(is_key, _gathered(pages, page_indices).to(q.dtype), 0)
        for pages in (k_pages, v_pages)
    )
    query = torch.arange(q.shape[1], device=q.device)
    last = query + (lengths - counts)[:, None]  # the last key that each query sees
    seen = (key <= last[..., None])[:, None] & is_key.mT
    q = q.transpose(1, 2)
    if soft_cap is None:
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=True)
    else:
        made = capped_attention(q, k, v, seen, soft_cap)
    # A sequence without keys gives 0, by whichever of torch's kernels.
    return torch.where((lengths > 0)[:, None, None, None], made, 0).transpose(1, 2)


def _gathered(pages: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The pages [kv heads, pages, page size, size] of each sequence, as [batch, kv heads, keys]."""
    heads, _, _, size = pages.shape
    found = pages[:, indices.long()]  # [kv heads, batch, pages, page size, size]
    return found.transpose(0, 1).reshape(indices.shape[0], heads, -1, size)


def capped_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, soft_cap: float
) -> torch.Tensor:
    """Attention without a scale whose scores are capped by `cap * tanh(scores / cap)`.

    Args:
        q: [batch, heads, queries, size].
        k: [batch, kv heads, keys, size].
        v: the same.
        seen: [batch or 1, 1, queries, keys], which keys a query sees.
        soft_cap: the cap.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k, v))
    scores = (q @ k.mT).float()
    scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = torch.where(seen, scores, torch.finfo(torch.float32).min).softmax(-1)
    return weights.to(v.dtype) @ v
