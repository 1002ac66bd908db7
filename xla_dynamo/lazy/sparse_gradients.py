"""Gradients that eager makes as sparse tensors, which the device lacks: the same ones, dense.

Optimizers that take either make the same steps of them. `torch.optim.SparseAdam` takes sparse ones
alone, and says so.
"""

from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


def register_dense_gradients(library: torch.library.Library) -> None:
    """Give the operators that make sparse gradients kernels for the device."""
    library.impl("embedding_sparse_backward", _of_embedding, "PrivateUse1")
    library.impl("_gather_sparse_backward", _of_gather, "PrivateUse1")


def _of_embedding(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """For `sparse=True` of embeddings and bags."""
    return torch.ops.aten.embedding_dense_backward(
        grad, indices, num_weights, padding_idx, scale_grad_by_freq
    )


def _of_gather(x: Tensor, dim: int, index: Tensor, grad: Tensor) -> Tensor:
    """For `sparse_grad=True`."""
    return x.new_zeros(x.shape).scatter_add(dim, index, grad)
