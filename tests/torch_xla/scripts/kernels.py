"""Kernels of PyTorch/XLA: attention, a kernel of Pallas, and an operator of the script's own."""

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_builder as xb
import torch_xla.experimental.custom_kernel
from torch.library import impl
from torch_xla.core.xla_model import XLA_LIB
from torch_xla.experimental.custom_kernel import (
    FlashAttention,
    flash_attention,
    jax_import_guard,
    make_kernel_from_pallas,
)

jax_import_guard()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402

device = torch_xla.device()
torch.manual_seed(0)

# Attention, with gradients and segments.
FlashAttention.DEFAULT_BLOCK_SIZES["block_q"] = 256
q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
ids = torch.arange(16).div(5, rounding_mode="floor").expand(2, -1)
seen = (ids[:, None, :, None] == ids[:, None, None, :]).tril()
expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.5)
expected.sum().backward()
there = [x.detach().to(device).requires_grad_() for x in (q, k, v)]
found = flash_attention(*there, True, ids.to(device), ids.to(device), 0.5)
found.sum().backward()
torch_xla.sync()
torch.testing.assert_close(found.cpu(), expected)
for x, y in zip(there, (q, k, v), strict=True):
    torch.testing.assert_close(x.grad.cpu(), y.grad)

# A kernel of Pallas.


def add_vectors_kernel(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


@jax.jit
def add_vectors(x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(add_vectors_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(
        x, y
    )


kernel = make_kernel_from_pallas(add_vectors, lambda x, y: [(x.shape, x.dtype)])
x = torch.arange(8, device=device, dtype=torch.float32)
torch.testing.assert_close(kernel(x, x).cpu(), 2 * x.cpu())

# A cache that is updated by an operator, in a compiled step.
XLA_LIB.define("update_cache_op(Tensor new, Tensor slots, Tensor cache) -> Tensor")


def update_cache(new, slots, cache):
    return cache.at[slots].set(new)


@impl(XLA_LIB, "update_cache_op", "XLA")
def update_cache_op_xla(new, slots, cache):
    return xb.call_jax(update_cache, (new, slots, cache), {})


@impl(XLA_LIB, "update_cache_op", "CompositeExplicitAutograd")
def update_cache_op_non_xla(new, slots, cache):
    return cache


@torch.compile(backend="openxla", fullgraph=True, dynamic=False)
def step(q, kv, pages, lengths, indices, ends, count):
    slots = indices[0, :1].long() * 4 + lengths[0] - 1
    pages = torch.ops.xla.update_cache_op(kv, slots, pages.flatten(0, 1)).reshape(pages.shape)
    attended = torch.ops.xla.ragged_paged_attention(
        q, pages, lengths, indices, ends, count, sm_scale=0.5
    )
    return attended, pages


pages = torch.randn(3, 4, 2, 8)
query, kv = torch.randn(1, 2, 8), torch.randn(1, 2, 8)
numbers = [torch.tensor(n, dtype=torch.int32) for n in ([3], [[1, 2]], [0, 1], [1])]
made, updated = step(*(t.to(device) for t in (query, kv, pages, *numbers)))
pages[1, 2] = kv[0]
torch.testing.assert_close(updated.cpu(), pages)
keys, values = pages[1, :3, 0], pages[1, :3, 1]
expected = (query[0] @ keys.T * 0.5).softmax(-1) @ values
torch.testing.assert_close(made.cpu()[0], expected)
print("ended", jnp.ones(3).sum())
