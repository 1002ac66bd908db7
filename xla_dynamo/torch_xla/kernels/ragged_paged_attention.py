"""PyTorch/XLA's `ragged_paged_attention`: prompts and single queries in one batch, over pages."""

import torch

from xla_dynamo.torch_xla.kernels.flash_attention import DEFAULT_MASK_VALUE
from xla_dynamo.torch_xla.kernels.operators import operator, runs_on_tpu
from xla_dynamo.torch_xla.kernels.ragged_loops import attend
from xla_dynamo.xla_builder import call_jax


@operator(
    "ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices, "
    "Tensor cu_q_lens, Tensor num_seqs, float sm_scale=1, int? sliding_window=None, "
    "float? soft_cap=None, float? mask_value=None, float? k_scale=None, float? v_scale=None, "
    "bool use_kernel=True, int? num_kv_pages_per_block=None, int? num_queries_per_block=None, "
    "int? vmem_limit_bytes=None) -> Tensor"
)
def _ragged_paged_attention(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> torch.Tensor:
    _check(q, kv_pages, kv_lens, page_indices, cu_q_lens)
    static = {
        "sm_scale": sm_scale,
        "sliding_window": sliding_window,
        "soft_cap": soft_cap,
        "mask_value": DEFAULT_MASK_VALUE if mask_value is None else mask_value,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }
    operands = (q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    if not (use_kernel and runs_on_tpu(q.device.type)):
        return call_jax(attend, operands, static)
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    blocks = {
        "num_kv_pages_per_block": num_kv_pages_per_block,
        "num_queries_per_block": num_queries_per_block,
        "vmem_limit_bytes": vmem_limit_bytes or 120 << 20,
    }
    return call_jax(ragged_paged_attention, operands, static | blocks)


def _check(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
) -> None:
    both = kv_pages.shape[2] if kv_pages.dim() == 4 else 1
    fits = q.dim() == 3 and both % 2 == 0 and q.shape[2] == kv_pages.shape[3]
    if not fits or q.shape[1] % (both // 2):
        raise ValueError(
            "q is [tokens, heads, size], and kv_pages [pages, page size, 2 * kv heads, size] with "
            f"kv heads that divide the heads, and not {tuple(q.shape)} and {tuple(kv_pages.shape)}"
        )
    most = kv_lens.shape[0]
    if page_indices.dim() != 2 or len(page_indices) != most or cu_q_lens.shape != (most + 1,):
        raise ValueError(
            "kv_lens is [sequences], page_indices [sequences, pages], and cu_q_lens [sequences + "
            f"1], and not {tuple(kv_lens.shape)}, {tuple(page_indices.shape)} and "
            f"{tuple(cu_q_lens.shape)}"
        )


def ragged_paged_attention(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> torch.Tensor:
    """Attention of the last tokens of sequences, as many as each has, to the keys of its pages.

    A token sees the keys up to its own. It has no gradients.

    Args:
        q: [tokens, heads, size], those of one sequence behind those of another.
        kv_pages: [pages, page size, 2 * kv heads, size]: keys and values take turns. Each head of
            keys serves as many heads of q in a row.
        kv_lens: int32[sequences], how many keys each sequence has, those of its tokens included.
        page_indices: int32[sequences, pages of a sequence], the numbers of its pages.
        cu_q_lens: int32[sequences + 1], where the tokens of each sequence begin, and where the last
            ones end.
        num_seqs: int32[1], how many sequences there are, the first ones.
        sm_scale: a factor of the scores.
        sliding_window: how many keys a token sees, its own included; None for all.
        soft_cap: caps scores by `cap * tanh(scores / cap)`.
        mask_value: what masked scores are.
        k_scale: a factor of the keys, which are of 8 bits then.
        v_scale: a factor of the values.
        use_kernel: whether JAX's kernel is called on TPU. Without it tokens of no sequence have no
            row in the result, as in PyTorch/XLA, unless it is traced.
        num_kv_pages_per_block: for the kernel on TPU.
        num_queries_per_block: for the kernel on TPU.
        vmem_limit_bytes: for the kernel on TPU.

    Returns:
        [tokens, heads, size], of q's dtype. Tokens of no sequence have 0, on TPU anything.

    Raises:
        ValueError: the sizes do not fit.
    """
    made = torch.ops.xla.ragged_paged_attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale,
        sliding_window,
        soft_cap,
        mask_value,
        k_scale,
        v_scale,
        use_kernel,
        num_kv_pages_per_block,
        num_queries_per_block,
        vmem_limit_bytes,
    )
    if use_kernel or torch.compiler.is_compiling():
        return made
    return made[: int(cu_q_lens[int(num_seqs[0])])]
