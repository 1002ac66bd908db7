"""Fused optimizers, as `Adam(fused=True)`: record their update as operators over lists of tensors.

The whole step is one program anyway, so nothing is lost by taking the fused operator apart, and a
learning rate that changes is an input of that program as it is elsewhere.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from xla_dynamo.lazy.signatures import Signature
from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten
Tensor: TypeAlias = torch.Tensor
Tensors: TypeAlias = Sequence[Tensor]


def _unscaled(grads: Tensors, scale: Tensor | None, maximize: bool) -> Tensors:
    """The gradients to descend; those of the parameters are divided by the scale in place."""
    if scale is not None:
        aten._foreach_div_(grads, scale)
    return aten._foreach_neg(grads) if maximize else grads


def _decayed(grads: Tensors, params: Tensors, weight_decay: float) -> Tensors:
    """The gradients with that of the L2 penalty."""
    return aten._foreach_add(grads, params, alpha=weight_decay) if weight_decay else grads


def _unless(found_inf: Tensor | None, update: Callable[[], None], *written: Tensors) -> None:
    """Write what an update writes, unless a gradient of a `GradScaler` was infinite."""
    tensors = [t for part in written for t in part]
    before = [t.clone() for t in tensors] if found_inf is not None else []
    update()
    if found_inf is not None:
        for old, tensor in zip(before, tensors, strict=True):
            tensor.copy_(torch.where(found_inf != 0, old, tensor))


def _adam(
    signature: Signature,
    params: Tensors,
    grads: Tensors,
    averages: Tensors,
    squares: Tensors,
    most: Tensors,
    steps: Tensors,
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Adam, or AdamW, whose weights decay apart from the gradient; see `torch.optim.Adam`.

    `averages` and `squares` are the running averages of the gradients and of their squares, `most`
    the largest squares yet, for amsgrad, and `steps` the numbers of steps, this one included.
    `grad_scale` and `found_inf` are a `GradScaler`'s.
    """
    apart = signature.op in (aten._fused_adamw_.default, aten._fused_adamw_.tensor_lr)

    def update() -> None:
        down = _unscaled(grads, grad_scale, maximize)
        if apart:
            aten._foreach_mul_(params, 1 - lr * weight_decay)
        else:
            down = _decayed(down, params, weight_decay)
        aten._foreach_lerp_(averages, down, 1 - beta1)
        aten._foreach_mul_(squares, beta2)
        aten._foreach_addcmul_(squares, down, down, 1 - beta2)
        if amsgrad:
            aten._foreach_maximum_(most, squares)
        unbiased = [1 - beta1**step for step in steps], [1 - beta2**step for step in steps]
        roots = aten._foreach_sqrt(most if amsgrad else squares)
        aten._foreach_div_(roots, aten._foreach_sqrt(unbiased[1]))
        aten._foreach_add_(roots, eps)
        sizes = [-lr / one for one in unbiased[0]]
        aten._foreach_addcdiv_(params, aten._foreach_mul(averages, sizes), roots)

    _unless(found_inf, update, params, averages, squares, most)


def _sgd(
    signature: Signature,
    params: Tensors,
    grads: Tensors,
    momenta: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """SGD; see `torch.optim.SGD`. In the first step, the momenta are the gradients."""

    def update() -> None:
        down = _decayed(_unscaled(grads, grad_scale, maximize), params, weight_decay)
        if momentum:
            if is_first_step:
                aten._foreach_copy_(momenta, down)
            else:
                aten._foreach_mul_(momenta, momentum)
                aten._foreach_add_(momenta, down, alpha=1 - dampening)
            down = aten._foreach_add(down, momenta, alpha=momentum) if nesterov else momenta
        if isinstance(lr, torch.Tensor):
            aten._foreach_sub_(params, aten._foreach_mul(down, lr))
        else:
            aten._foreach_add_(params, down, alpha=-lr)

    _unless(found_inf, update, params, momenta)


def _adagrad(
    signature: Signature,
    params: Tensors,
    grads: Tensors,
    sums: Tensors,
    steps: Tensors,
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Adagrad; see `torch.optim.Adagrad`. `steps` includes this one."""

    def update() -> None:
        down = _decayed(_unscaled(grads, grad_scale, maximize), params, weight_decay)
        aten._foreach_addcmul_(sums, down, down)
        roots = aten._foreach_add(aten._foreach_sqrt(sums), eps)
        sizes = [-lr / (1 + (step - 1) * lr_decay) for step in steps]
        aten._foreach_addcdiv_(params, aten._foreach_mul(down, sizes), roots)

    _unless(found_inf, update, params, sums)


FUSED: dict[OpOverload, Callable[..., None]] = {
    aten._fused_adam_.default: _adam,
    aten._fused_adam_.tensor_lr: _adam,
    aten._fused_adamw_.default: _adam,
    aten._fused_adamw_.tensor_lr: _adam,
    aten._fused_sgd_.default: _sgd,
    aten._fused_sgd_.tensor_lr: _sgd,
    aten._fused_adagrad_.default: _adagrad,
    aten._fused_adagrad_.tensor_lr: _adagrad,
}
