"""What a forward saves for its backward: in the strides it was computed in, and still eager's."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.compiling import assert_matches_eager, watched
from xla_dynamo.kernels import onednn_convolution
from xla_dynamo.kernels.libraries import libraries_of

has_images = pytest.mark.skipif(
    "onednn" not in libraries_of("cpu"), reason="there is no library with the channels last here"
)


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However small a convolution is."""
    monkeypatch.setattr(onednn_convolution, "FEWEST_IN_CONVOLUTION", 0)


def images():
    return torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3) / 5, torch.randn(4, 4, 3, 3) / 6


def convolutions(x, first, second):
    x = F.max_pool2d(F.batch_norm(F.conv2d(x, first), None, None, training=True).relu(), 2, 1)
    return F.conv2d(x, second, None, 1, 1).sigmoid()


def chosen_strides(f, *inputs, dynamic=False):
    """Compare with eager, and tell what strides were chosen for what is saved."""
    run, built = watched(f, dynamic=dynamic)
    leaves = [x.requires_grad_() for x in inputs]
    close = {"rtol": 1e-4, "atol": 1e-5}
    assert_matches_eager(run, *leaves, calls=2, gradient_strides=True, **close)
    return [event.program.chosen_strides() for event in built]


@has_images
def test_images_are_saved_with_the_channels_last():
    chosen, _ = chosen_strides(convolutions, *images())
    assert chosen
    assert all(len(stride) != 4 or stride[1] == 1 for stride in chosen.values())


@has_images
@pytest.mark.parametrize("size", [(3, 1, 1), (1, 4, 1), (1, 1, 5)])
def test_sizes_of_one(size):
    weight = torch.randn(4, size[0], 3, 3)
    chosen_strides(
        lambda x, w: F.conv2d(x, w, None, 1, 1).tanh().exp(),
        torch.randn(2, *size),
        weight,
    )


def test_a_transpose_is_saved_as_what_it_is_made_from():
    def f(x, y):
        return (x @ y).transpose(0, 1).tanh().cos()

    chosen, _ = chosen_strides(f, torch.randn(3, 4, 5), torch.randn(3, 5, 6))
    assert set(chosen.values()) <= {(6, 24, 1)}


def test_what_the_user_gets_too_has_eagers_strides():
    def f(x, first, second):
        y = F.conv2d(x, first).exp()
        return y, F.conv2d(y, second).tanh()

    chosen_strides(f, *images())


def test_dynamic_sizes_keep_what_was_traced():
    assert not any(chosen_strides(convolutions, *images(), dynamic=True))


@torch.library.custom_op("xla_dynamo_tests::in_its_strides", mutates_args=())
def in_its_strides(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert y.is_contiguous(), y.stride()
    return grad * y.as_strided((y.numel(),), (1,)).view_as(y)


@in_its_strides.register_fake
def _(grad, y):
    return torch.empty_like(grad)


class InEager(torch.autograd.Function):
    """x ** 2 / 2, whose backward is an operator without a rule that looks at memory."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x / 2

    @staticmethod
    def backward(ctx, grad):
        return in_its_strides(grad, *ctx.saved_tensors)


def test_a_backward_that_is_cut_gets_what_was_traced():
    def f(x, first, second):
        return F.conv2d(InEager.apply(F.conv2d(x, first).tanh()), second)

    chosen_strides(f, *images())


def test_checkpoints():
    def f(*inputs):
        return checkpoint(convolutions, *inputs, use_reentrant=False)

    chosen_strides(f, *images())


def test_saved_in_the_memory_of_the_cpu():
    with torch.autograd.graph.save_on_cpu():
        chosen_strides(convolutions, *images())


def test_hooks_at_saved_tensors():
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.contiguous() + 0

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        chosen_strides(convolutions, *images())
    assert packed


@has_images
def test_what_autograd_saves_by_an_alias_is_saved_once():
    def f(x, first, second):
        return F.conv2d(F.conv2d(x, first).relu(), second)

    chosen, _ = chosen_strides(f, *images())
    assert len(chosen) == 1


@pytest.mark.parametrize("backend", ["eager", "openxla"])
def test_a_result_that_is_changed_before_the_backward_is_refused(backend):
    torch._dynamo.reset()
    x = torch.randn(5, requires_grad=True)
    y = torch.compile(lambda x: x.sin().exp(), backend=backend)(x)
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
