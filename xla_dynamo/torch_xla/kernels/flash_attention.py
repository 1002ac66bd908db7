"""PyTorch/XLA's `flash_attention`, as torch's scaled dot-product attention."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from xla_dynamo import spmd
from xla_dynamo.torch_xla.kernels.operators import operator, runs_on_tpu
from xla_dynamo.torch_xla.kernels.tpu_flash_attention import flash_attention_on_tpu
from xla_dynamo.xla_builder import call_jax

# What masked scores are on TPU, so that a query without any key gets the mean of all values.
DEFAULT_MASK_VALUE = -0.7 * torch.finfo(torch.float32).max


class FlashAttention:
    """`flash_attention` as a function for autograd, and the kernel's sizes on TPU.

    Attributes:
        MIN_BLOCK_SIZE: the least size of a block.
        DEFAULT_MASK_VALUE: what masked scores are.
        DEFAULT_BLOCK_SIZES: sizes of the kernel's blocks on TPU.
        NUM_LANES: of a TPU's vector registers.
        NUM_SUBLANES: likewise.
    """

    MIN_BLOCK_SIZE = 128
    DEFAULT_MASK_VALUE = DEFAULT_MASK_VALUE
    DEFAULT_BLOCK_SIZES: ClassVar[dict[str, int]] = {
        "block_b": 2,
        **dict.fromkeys(("block_q", "block_k_major", "block_k"), 512),
        **dict.fromkeys(("block_q_major_dkv", "block_k_major_dkv"), 512),
        **dict.fromkeys(("block_q_dkv", "block_k_dkv", "block_k_major_dq"), 512),
        "block_q_dq": 1024,
        "block_k_dq": 256,
    }
    NUM_LANES = 128
    NUM_SUBLANES = 8

    @staticmethod
    def apply(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        q_segment_ids: torch.Tensor | None = None,
        kv_segment_ids: torch.Tensor | None = None,
        sm_scale: float = 1.0,
        ab: torch.Tensor | None = None,
        partition_spec: Any = None,
        mesh: spmd.Mesh | None = None,
    ) -> torch.Tensor:
        """Call `flash_attention`."""
        return flash_attention(
            q,
            k,
            v,
            causal,
            q_segment_ids,
            kv_segment_ids,
            sm_scale,
            ab=ab,
            partition_spec=partition_spec,
            mesh=mesh,
        )


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: spmd.Mesh | None = None,
) -> torch.Tensor:
    """Attention, softmax(q @ k.mT * sm_scale + ab) @ v, whose scores are never kept.

    Args:
        q: [batch, heads, queries, size]; or with one more dimension in front.
        k: [batch, heads, keys, size].
        v: the same.
        causal: whether query i sees the keys 0 to i alone.
        q_segment_ids: [batch, queries]: a query sees the keys of its own segment alone.
        kv_segment_ids: [batch, keys].
        sm_scale: a factor of the scores.
        ab: [batch, heads, queries, keys], which is added to the scores.
        partition_spec: how q, k, v and the result are sharded over `mesh`.
        mesh: the devices; the global mesh unless given.

    Returns:
        [batch, heads, queries, size], of q's dtype.

    Raises:
        ValueError: the sizes do not fit, one of two segment ids is missing, or there is no mesh.
    """
    _check(q, k, v, q_segment_ids, kv_segment_ids)
    operands = (q, k, v, q_segment_ids, kv_segment_ids, ab)
    if partition_spec is None:
        return _attention(*operands, causal, sm_scale)
    mesh = mesh or spmd.get_global_mesh()
    if mesh is None:
        raise ValueError("flash_attention has a partition_spec: give it a mesh, or a global one")
    spec = tuple(partition_spec)
    if runs_on_tpu(q.device.type):  # XLA does not partition kernels
        return _on_shards(operands, causal, sm_scale, spec, mesh)
    q, k, v = (spmd.mark_sharding_with_gradients(x, mesh, spec) for x in (q, k, v))
    made = _attention(q, k, v, q_segment_ids, kv_segment_ids, ab, causal, sm_scale)
    return spmd.mark_sharding_with_gradients(made, mesh, spec)


def _check(q: Any, k: Any, v: Any, q_segment_ids: Any, kv_segment_ids: Any) -> None:
    shapes = [tuple(x.shape) for x in (q, k, v)]
    of_q, of_k, _ = shapes
    if len(of_q) < 4 or of_k != shapes[2] or of_q[:-2] != of_k[:-2] or of_q[-1] != of_k[-1]:
        raise ValueError(
            "flash_attention takes q [batch, heads, queries, size], and k and v [batch, heads, "
            f"keys, size], and not {shapes}"
        )
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ValueError("flash_attention takes segment ids of both queries and keys, or none")


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_segment_ids: torch.Tensor | None,
    kv_segment_ids: torch.Tensor | None,
    ab: torch.Tensor | None,
    causal: bool,
    sm_scale: float,
) -> torch.Tensor:
    """Attention on tensors that have one batch dimension, or several."""
    if runs_on_tpu(q.device.type):
        sizes = tuple(sorted(FlashAttention.DEFAULT_BLOCK_SIZES.items()))
        ids = [x if x is None else x.int() for x in (q_segment_ids, kv_segment_ids)]
        operands = (q, k, v, *ids, ab)
        flat = tuple(x if x is None else x.flatten(0, q.dim() - 4) for x in operands)
        static = {"causal": causal, "sm_scale": sm_scale, "block_sizes": sizes}
        return call_jax(flash_attention_on_tpu, flat, static).reshape(q.shape)
    if q_segment_ids is None and ab is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    seen = keys_seen(q, k, q_segment_ids, kv_segment_ids, causal)
    mask = seen if ab is None else torch.where(seen, ab.to(q.dtype), -torch.inf)
    made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale)
    if q_segment_ids is None:
        return made
    # All scores are one where all are masked; torch would give 0, or numbers that mean nothing.
    return torch.where(seen.any(-1, keepdim=True), made, v.mean(-2, keepdim=True))


def keys_seen(
    q: torch.Tensor,
    k: torch.Tensor,
    q_segment_ids: torch.Tensor | None,
    kv_segment_ids: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """Whether a query sees a key, bool[..., 1, queries, keys]."""
    seen = torch.ones(1, q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril()
    if q_segment_ids is not None and kv_segment_ids is not None:
        seen = seen & (q_segment_ids[..., None, :, None] == kv_segment_ids[..., None, None, :])
    return seen


def _on_shards(
    operands: tuple[torch.Tensor | None, ...],
    causal: bool,
    sm_scale: float,
    spec: tuple[Any, ...],
    mesh: spmd.Mesh,
) -> torch.Tensor:
    """Attention of each device to its own shards."""
    of_ids = (*spec[:-3], spec[-2])
    specs = [spec, spec, spec, of_ids, of_ids, (*spec[:-2], None, None)]
    given = [i for i, x in enumerate(operands) if x is not None]

    def of_shards(*shards: torch.Tensor) -> torch.Tensor:
        found: dict[int, Any] = dict(zip(given, shards, strict=True))
        q, k, v, *others = (found.get(i) for i in range(6))
        of_q, of_k, ab = others
        return _attention(q, k, v, of_q, of_k, ab, causal, sm_scale)

    mapped = spmd.shard_map(of_shards, mesh, tuple(specs[i] for i in given), spec)
    return mapped(*(operands[i] for i in given))


@operator("flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor")
def flash_attention_xla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """`torch.ops.xla.flash_attention`: `flash_attention` of four arguments."""
    return flash_attention(q, k, v, causal)
