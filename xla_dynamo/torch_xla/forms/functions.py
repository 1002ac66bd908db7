"""Names of `torch_xla.core.functions`: collectives with the gradients that PyTorch/XLA gives them.

`all_reduce` and `all_gather` here give the gradient of one process's own loss, as where all
processes compute the same loss from the result. Those of `xla_dynamo` sum over all losses.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

import xla_dynamo

Tensor: TypeAlias = torch.Tensor
Groups: TypeAlias = Sequence[Sequence[int]] | None


class AllReduce(torch.autograd.Function):
    """`all_reduce` as a function of autograd: `apply(input, reduce_type, scale, groups)`."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, reduce_type: str, scale: float, groups: Groups) -> Tensor:
        """The scaled reduction of all processes' tensors."""
        ctx.reduce_type, ctx.scale, ctx.groups = reduce_type, scale, groups
        reduced = xla_dynamo.all_reduce(reduce_type, input, groups=groups)
        ctx.save_for_backward(input, reduced)
        return reduced * scale if scale != 1.0 else reduced

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradient of this process's tensor, by this process's gradient of the result."""
        (given,) = gradients
        input, reduced = ctx.saved_tensors
        gradient = given * ctx.scale if ctx.scale != 1.0 else given
        if ctx.reduce_type in ("min", "max"):
            gradient = torch.where(input == reduced, gradient, torch.zeros_like(gradient))
        elif ctx.reduce_type == "mul":
            gradient = gradient * _product_of_others(input, ctx.groups)
        elif ctx.reduce_type != "sum":
            raise RuntimeError(f"a reduction by {ctx.reduce_type!r} has no gradient")
        return gradient, None, None, None


def _product_of_others(x: Tensor, groups: Groups) -> Tensor:
    """What the other processes' tensors multiply to, which has no division by zero."""
    with torch.enable_grad():
        own = x.detach().requires_grad_()
        product = xla_dynamo.all_reduce("mul", own, groups=groups)
        size = xla_dynamo.xrt_world_size() if not groups else len(groups[0])
        # That gradient sums over the processes of a group, which give parts of one.
        (found,) = torch.autograd.grad(product, own, torch.full_like(product, 1.0 / size))
    return found


def all_reduce(
    reduce_type: str, value: Tensor, scale: float = 1.0, groups: Groups = None
) -> Tensor:
    """Reduce a tensor over processes.

    Args:
        reduce_type: "sum", "mul", "min" or "max", which have gradients, or "and" or "or".
        value: a tensor.
        scale: what the result is multiplied by.
        groups: groups of ranks, of one size, each process in one; all in one unless given.

    Returns:
        A new tensor of the same shape and dtype. Each process's gradient goes to its own tensor.

    Raises:
        ShardingError, ProcessError: as `xla_dynamo.all_reduce`.
        RuntimeError, from the backward: the reduction has no gradient.
    """
    return AllReduce.apply(value, reduce_type, scale, groups)


class AllGather(torch.autograd.Function):
    """`all_gather` as a function of autograd: `apply(input, dim)`."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int) -> Tensor:
        """The tensors of all processes, one behind the other."""
        ctx.dim = dim
        return xla_dynamo.all_gather(input, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """This process's part of its gradient."""
        return own_part(gradients[0], ctx.dim), None


def own_part(x: Tensor, dim: int) -> Tensor:
    """This process's part along a dimension; its rank is no constant of the program."""
    size, dim = xla_dynamo.xrt_world_size(), dim % x.dim()
    if size == 1:
        return x
    rank = torch.tensor([xla_dynamo.get_ordinal()]).to(x.device)
    parts = x.unflatten(dim, (size, x.size(dim) // size))
    return parts.index_select(dim, rank).squeeze(dim)


def all_gather(value: Tensor, dim: int = 0) -> Tensor:
    """The tensors of all processes, one behind the other along `dim`.

    Args:
        value: a tensor, of one shape in all processes.
        dim: the dimension.

    Returns:
        A tensor whose size in `dim` is as many times larger as there are processes. Of its
        gradient, each process's own part goes to its tensor.

    Raises:
        ShardingError, ProcessError: as `xla_dynamo.all_gather`.
    """
    return AllGather.apply(value, dim)


def distributed_mm(w: Tensor, x: Tensor, split: int = 1) -> Tensor:
    """Multiply a weight, of which each process has some columns, with this process's tensor.

    Args:
        w: this process's columns, of shape [n, k].
        x: a tensor of shape [k * processes, m].
        split: in how many parts the columns of `x` are gathered, to hold less at once.

    Returns:
        The product of the whole weight and `x`, of shape [n, m].

    Raises:
        ValueError: shapes do not fit, or m is not divisible by `split`.
    """
    size, k = xla_dynamo.xrt_world_size(), w.size(1)
    if x.size(0) != k * size or x.size(1) % split:
        raise ValueError(
            f"distributed_mm of {tuple(w.shape)} and {tuple(x.shape)} in {size} processes, with "
            f"split={split}: x has {k * size} rows, and a number of columns divisible by split"
        )

    def product(part: Tensor) -> Tensor:
        rows = own_part(all_gather(part, dim=1), 0)  # of all processes' columns
        return own_part(all_reduce("sum", w @ rows), 1)

    made = [product(part) for part in x.chunk(split, dim=1)]
    return made[0] if split == 1 else torch.cat(made, dim=1)


class AllReduceSumLayer(torch.autograd.Function):
    """The sum over all processes, whose gradient is the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The sum."""
        return xla_dynamo.all_reduce("sum", x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        """The sum of the gradients."""
        return xla_dynamo.all_reduce("sum", gradients[0])


class SyncBatchNorm(nn.Module):
    """Batch norm of 2 to 5 dimensions, whose mean and variance are those of all processes' batches.

    As in PyTorch/XLA, the running variance is that of the batch, without Bessel's correction.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        """Take the size of dimension 1, what is added to variances, and the share of new ones."""
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: Tensor) -> Tensor:
        """The normalized batch, by the running mean and variance outside of training.

        Raises:
            ValueError: it has less than 2 or more than 5 dimensions, or another size in dimension
                1.
        """
        if not 2 <= batch.dim() <= 5 or batch.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm({self.num_features}) takes 2 to 5 dimensions, with "
                f"{self.num_features} features in dimension 1, and not {tuple(batch.shape)}"
            )
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean, variance = self._over_all(batch)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance, self.momentum)
        mean, variance, weight, bias = (
            t.reshape(1, -1, *[1] * (batch.dim() - 2))
            for t in (mean, variance, self.weight, self.bias)
        )
        return (batch - mean) / torch.sqrt(variance + self.eps) * weight + bias

    def _over_all(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        dims = [d for d in range(batch.dim()) if d != 1]
        own = torch.stack([batch.mean(dims), (batch * batch).mean(dims)])
        mean, square = AllReduceSumLayer.apply(own) / xla_dynamo.xrt_world_size()
        return mean, square - mean.pow(2)

    def extra_repr(self) -> str:
        """What the module is shown with."""
        return f"{self.num_features}, eps={self.eps}"
