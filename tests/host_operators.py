"""Operators that have no rule, so that they run in eager torch between compiled parts."""

import torch


@torch.library.custom_op("xla_dynamo_tests::host_sine", mutates_args=())
def host_sine(x: torch.Tensor) -> torch.Tensor:
    """Sine, with a gradient."""
    return x.sin()


@host_sine.register_fake
def _(x):
    return torch.empty_like(x)


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos()


host_sine.register_autograd(
    _backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@torch.library.custom_op("xla_dynamo_tests::two", mutates_args=())
def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sine and cosine."""
    return x.sin(), x.cos()


@two.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("xla_dynamo_tests::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    """Doubles its argument in place."""
    x.mul_(2)


@torch.library.custom_op("xla_dynamo_tests::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    """A copy in other strides than the fake function promises."""
    return x.t().contiguous().t()


@transposed.register_fake
def _(x):
    return torch.empty_like(x)


transposed.register_autograd(lambda ctx, grad: grad)


@torch.library.custom_op("xla_dynamo_tests::liar", mutates_args=())
def liar(x: torch.Tensor) -> torch.Tensor:
    """The first row alone, where the fake function promises all."""
    return x[:1].clone()


@liar.register_fake
def _(x):
    return torch.empty_like(x)
