"""Which ATen operators torch rewrites into simpler ones before the table sees them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.decompositions import (
    fused_cells,
    loss_scaling,
    nll_loss,
    torch_draws,
    whole_resampling,
)
from xla_dynamo.decompositions.foreach import foreach_decompositions
from xla_dynamo.torch_private import (
    OpOverload,
    core_aten_decompositions,
    get_decompositions,
    suggest_memory_format,
)

aten = torch.ops.aten

_SLICES = "slices, which move blocks, where torch's pieces gather or scatter elements"

_TAPS = "one table of indices and weights a dimension, shared with the gradient"

_ENDS = "torch's pieces keep the fractions of integers' ends, and count in float32"

_ROUNDED_ONCE = "eager rounds the product and the sum once, pieces each"

# Left whole, because one rule expresses the operator better than its decomposition.
_KEPT: dict[Any, str] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (
        "torch's decomposition returns another second result than its backward reads: wrong "
        "gradients"
    ),
    aten.native_layer_norm_backward.default: "one rule, and part of the core ATen opset",
    aten.native_group_norm_backward.default: "torch's pieces sum half types without widening them",
    aten.detach.default: "its piece is the operand itself, an alias that torch refuses in a scan",
    aten.stack.default: "a dimension of its own, where the piece joins one that may be sharded",
    aten.mv.default: "a dot, not a product and a sum over a broadcast matrix",
    aten.dot.default: "a dot, not a product and a sum",
    aten.vdot.default: "a dot, not a product and a sum",
    aten.baddbmm.default: "widens half types once around the whole",
    aten.baddbmm.dtype: "widens half types once around the whole",
    aten.addcmul.default: _ROUNDED_ONCE,
    aten.addcdiv.default: "eager's order, value * y / z, where torch's pieces divide first",
    aten.lerp.Scalar: _ROUNDED_ONCE,
    aten.lerp.Tensor: _ROUNDED_ONCE,
    **dict.fromkeys(whole_resampling.overloads(), _TAPS),
    aten.linspace.default: _ENDS,
    aten.linspace.Tensor_Tensor: _ENDS,
    aten.linspace.Tensor_Scalar: _ENDS,
    aten.linspace.Scalar_Tensor: _ENDS,
    aten.reflection_pad1d.default: _SLICES,
    aten.reflection_pad2d.default: _SLICES,
    aten.reflection_pad3d.default: _SLICES,
    aten.reflection_pad1d_backward.default: _SLICES,
    aten.reflection_pad2d_backward.default: _SLICES,
    aten.reflection_pad3d_backward.default: _SLICES,
    aten.replication_pad1d.default: _SLICES,
    aten.replication_pad2d.default: _SLICES,
    aten.replication_pad3d.default: _SLICES,
    aten.im2col.default: _SLICES,
    aten.col2im.default: _SLICES,
    aten.unfold_backward.default: _SLICES,
    aten.embedding_dense_backward.default: "one scatter of rows, which drops the padding's rows",
    aten.select_scatter.default: (
        "torch's pieces forget the strides, by which AOTAutograd finds views of a changed input"
    ),
    aten.take.default: "torch's pieces read a 0-d index as a number, which is not known here",
}

# Not in torch's core list, though torch has a decomposition.
_ADDED = (
    aten._addmm_activation.default,
    aten.batch_norm_backward.default,
    aten.dist.default,
    aten.rrelu_with_noise_backward.default,
    aten.narrow_copy.default,
    aten.unbind_copy.int,
    aten.tril_indices.default,
    aten.triu_indices.default,
)


def _in_input_layout(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Give a result the memory format of the first argument, as eager's kernel does."""

    def decompose(x: torch.Tensor, *args: Any) -> torch.Tensor:
        result = decomposition(x, *args)
        return result.contiguous(memory_format=suggest_memory_format(x))

    return decompose


def _in_memory_of_its_own(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a result that torch's pieces, unlike eager's kernel, may make a view of the input."""

    def decompose(*args: Any) -> torch.Tensor:
        return decomposition(*args).clone()

    return decompose


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Slices and concatenations, with the strides that eager gives; torch's pieces gather."""
    if x.numel() == 0:
        return x.clone()
    if not dims:  # as if flat
        return _roll(x.contiguous().view(x.numel()), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.size(dim)
        cut = -shift % size
        x = torch.cat([x.narrow(dim, cut, size - cut), x.narrow(dim, 0, cut)], dim)
    return x


@functools.cache
def decompositions(rng: str = "xla") -> dict[OpOverload, Callable[..., Any]]:
    """The core ATen decompositions less the ones the table does better, and some more.

    With `rng="torch"`, random operators are left as eager runs them.
    """
    table = dict(core_aten_decompositions())
    for op in _KEPT:
        table.pop(op, None)
    table |= get_decompositions(_ADDED) | foreach_decompositions() | nll_loss.DECOMPOSITIONS
    table |= fused_cells.DECOMPOSITIONS | loss_scaling.DECOMPOSITIONS
    table[aten.roll.default] = _roll
    op = aten.channel_shuffle.default
    table[op] = _in_memory_of_its_own(table[op])
    for op in (aten.max_unpool2d.default, aten.max_unpool3d.default):
        table[op] = _in_input_layout(table[op])
    if rng == "torch":
        for op in torch_draws.WHOLE:
            table.pop(op, None)
        table |= torch_draws.DECOMPOSITIONS
    return table
