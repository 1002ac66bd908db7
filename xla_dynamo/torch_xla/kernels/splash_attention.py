"""PyTorch/XLA's `splash_attention`: attention under masks, windows and caps, with shardings."""

import dataclasses
import json
from typing import Any

import torch
import torch.nn.functional as F

from xla_dynamo import spmd
from xla_dynamo.torch_xla.kernels.flash_attention import keys_seen
from xla_dynamo.torch_xla.kernels.paged_attention import capped_attention


@dataclasses.dataclass(frozen=True)
class SplashAttentionConfig:
    """How `splash_attention` is sharded, and which keys a query sees.

    Sizes of blocks, layouts and the choice of a backward are for PyTorch/XLA's kernel. Nothing here
    reads them.

    Attributes:
        mesh: the text of a mesh, as `str` gives it; the global mesh unless given.
        qkv_partition_spec: how q, k, v and the result are sharded over it.
        segment_ids_partition_spec: how the segment ids are sharded.
        attentiontype_local_sliding: whether a query sees the keys near to it alone.
        slide_window_size: up to which distance, then.
    """

    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
    mesh: str | None = None
    qkv_partition_spec: tuple[Any, ...] = (("data", "fsdp"), None, None, None)
    segment_ids_partition_spec: tuple[Any, ...] = (("data", "fsdp"), None)
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None

    def to_json(self) -> str:
        """The configuration as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, data: str) -> "SplashAttentionConfig":
        """The configuration that `to_json` wrote."""
        return cls(**{name: _as_tuple(value) for name, value in json.loads(data).items()})


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


@torch.compiler.assume_constant_result
def _read(config: str) -> tuple[Any, ...]:
    read = SplashAttentionConfig.from_json(config)
    window = read.slide_window_size if read.attentiontype_local_sliding else None
    if read.attentiontype_local_sliding and window is None:
        raise ValueError("attentiontype_local_sliding asks for a slide_window_size")
    mesh = spmd.Mesh.from_str(read.mesh or "") or spmd.get_global_mesh()
    return mesh, read.qkv_partition_spec, read.segment_ids_partition_spec, window


def splash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: torch.Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention without a scale, sharded over a mesh. Gradients pass.

    Args:
        q: [batch, heads, queries, size].
        k: [batch, kv heads, keys, size]; each head serves as many heads of q in a row.
        v: the same.
        config: a `SplashAttentionConfig` as JSON.
        decoder_segment_ids: [batch, queries]: a query sees the keys of its own segment alone.
        causal: whether query i sees the keys 0 to i alone.
        attn_logits_soft_cap: caps scores by `cap * tanh(scores / cap)`.

    Returns:
        [batch, heads, queries, size], of q's dtype.

    Raises:
        ValueError: a window is asked for without its size.
    """
    mesh, spec, spec_of_ids, window = _read(config)
    ids = decoder_segment_ids
    if mesh is not None:
        q, k, v = (spmd.mark_sharding_with_gradients(x, mesh, spec) for x in (q, k, v))
        ids = ids if ids is None else spmd.mark_sharding(ids, mesh, spec_of_ids)
    made = _attention(q, k, v, ids, causal, window, attn_logits_soft_cap)
    return made if mesh is None else spmd.mark_sharding_with_gradients(made, mesh, spec)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ids: torch.Tensor | None,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    if ids is None and window is None and soft_cap is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1.0, enable_gqa=True)
    seen = keys_seen(q, k, ids, ids, causal)
    if window is not None:
        seen = seen & torch.ones_like(seen).triu(-window).tril(window)
    if soft_cap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=True)
    return capped_attention(q, k, v, seen, soft_cap)


class SplashAttention:
    """`splash_attention` as a function for autograd, which it is in any case."""

    @staticmethod
    def apply(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        config: str,
        decoder_segment_ids: torch.Tensor | None = None,
        causal: bool = True,
        attn_logits_soft_cap: float | None = None,
    ) -> torch.Tensor:
        """Call `splash_attention`."""
        return splash_attention(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)
