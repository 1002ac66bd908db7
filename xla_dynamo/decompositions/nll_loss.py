"""The gradient of the negative log likelihood in operators that XLA fuses.

Torch's decomposition scatters into a tensor of zeros, which XLA must materialize: for a language
model, another array of (tokens, vocabulary). Comparing each class with the target needs none.
"""

from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor
aten = torch.ops.aten
_MEAN = 1


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Gradient of the shape of `self`: ([n,] classes, ...), `target` being the same less classes.

    Source: `aten::nll_loss_backward` and `aten::nll_loss2d_backward`, which have one schema.
    """
    dim = min(self.ndim - 1, 1)
    classes = torch.arange(self.shape[dim], device=self.device)
    classes = classes.reshape([-1 if d == dim else 1 for d in range(self.ndim)])
    if self.ndim > 1 or not target.ndim:
        target = target.unsqueeze(dim)
    if self.ndim > 1 and grad_output.ndim:
        grad_output = grad_output.unsqueeze(dim)
    grad = -grad_output if weight is None else -weight.reshape(classes.shape) * grad_output
    if reduction == _MEAN:
        grad = grad / total_weight
    return torch.where((classes == target) & (target != ignore_index), grad, 0)


DECOMPOSITIONS = {
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
}
