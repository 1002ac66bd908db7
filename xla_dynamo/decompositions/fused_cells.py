"""Decompose the fused cells of recurrent networks, which torch chooses on devices beside the CPU.

The formulas, and what the workspaces hold, are those of torch's kernels for CUDA
(aten/src/ATen/native/cuda/RNN.cu).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten
Tensor: TypeAlias = torch.Tensor


def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The new hidden state, the new cell, and the gates after their activations."""
    gates = _sum(input_gates, hidden_gates, input_bias, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of the gates, of the cell, and of each bias."""
    i, f, g, o = workspace.chunk(4, 1)
    hidden = torch.zeros_like(cx) if grad_hy is None else grad_hy
    tanh = cy.tanh()
    cell = hidden * o * (1 - tanh * tanh)
    if grad_cy is not None:
        cell = cell + grad_cy
    grads = [
        cell * g * i * (1 - i),
        cell * cx * f * (1 - f),
        cell * i * (1 - g * g),
        hidden * tanh * o * (1 - o),
    ]
    gates = torch.cat(grads, 1)
    return gates, cell * f, gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The new hidden state, and what its gradient needs."""
    from_input = input_gates if input_bias is None else input_gates + input_bias
    from_hidden = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    ir, iz, i_n = from_input.chunk(3, 1)
    hr, hz, hn = from_hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def _gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of both inputs' gates, of the hidden state, and of each bias."""
    r, z, n, hx, hn = workspace.chunk(5, 1)
    update = grad_hy * (hx - n) * (1 - z) * z
    new = grad_hy * (1 - z) * (1 - n * n)
    reset = new * hn * (1 - r) * r
    of_input = torch.cat([reset, update, new], 1)
    of_hidden = torch.cat([reset, update, new * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad_hy * z, *biases


def _sum(first: Tensor, *others: Tensor | None) -> Tensor:
    for other in others:
        first = first if other is None else first + other
    return first


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
