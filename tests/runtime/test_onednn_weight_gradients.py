"""Weight gradients by oneDNN's own library: as torch's, and used where programs ask for them."""

import pytest
import torch
import torch.nn.functional as F

from tests.comparison import compare_with_exact
from tests.compiling import compiled
from xla_dynamo.kernels import convolution_weight_gradient
from xla_dynamo.kernels.convolution_weight_gradient import OneDNNGradient
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.runtime.cpu import onednn

needs_library = pytest.mark.skipif(onednn.library() is None, reason="needs the extra onednn")
CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)

# Shapes of images, channels of the result, window, strides, paddings and dilations.
CASES = {
    "three channels": ((2, 3, 15, 15), 16, (3, 3), (2, 2), (1, 1), (1, 1)),
    "odd numbers of channels": ((3, 5, 9, 7), 11, (3, 2), (1, 1), (1, 0), (2, 1)),
    "one image": ((1, 16, 8, 8), 32, (5, 5), (1, 1), (2, 2), (1, 1)),
    "one row": ((4, 8, 1, 33), 8, (1, 7), (1, 2), (0, 3), (1, 1)),
    "one dimension": ((2, 8, 40), 8, (5,), (2,), (2,), (1,)),
    "three dimensions": ((2, 4, 5, 6, 7), 8, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
}


def gradient(image, grad, kernel, window):
    strides, paddings, dilations = window
    settings = strides, paddings, dilations, False, [0] * len(strides), 1
    weight = torch.empty(kernel, dtype=image.dtype)
    mask = [False, True, False]
    return torch.ops.aten.convolution_backward(grad, image, weight, None, *settings, mask)[1]


@needs_library
@pytest.mark.parametrize("layout", ["channels first", "channels last", "among others"])
@pytest.mark.parametrize("case", CASES)
def test_gradients(case, layout):
    shape, out, kernel, *window = CASES[case]
    kernel = (out, shape[1], *kernel)
    image, weight = torch.randn(shape), torch.randn(kernel)
    grad = torch.randn_like(CONVOLVE[len(shape) - 3](image, weight, None, *window))
    if layout != "channels first":
        image, grad = (t.movedim(1, -1).contiguous().movedim(-1, 1) for t in (image, grad))
    if layout == "among others":  # as a share has some of the channels, and some of the images
        image, grad = (torch.cat([t] * 2, 1)[:, t.shape[1] :] for t in (image, grad))
    found = torch.full(kernel, torch.nan)
    compute = OneDNNGradient(image, grad, found, window)
    for scale in (1, 3):
        compute(image, grad.mul_(scale), found)
        exact = gradient(image.double(), grad.double(), kernel, window)
        compare_with_exact(exact, gradient(image, grad, kernel, window), found)


@needs_library
def test_no_number_is_lost():
    image, grad = torch.randn(2, 8, 9, 9), torch.randn(2, 8, 9, 9)
    image[1, 3, 4, 4], grad[0, 5, 0, 0] = torch.nan, torch.inf
    found, window = torch.empty(8, 8, 3, 3), [[1, 1], [1, 1], [1, 1]]
    OneDNNGradient(image, grad, found, window)(image, grad, found)
    expected = gradient(image, grad, (8, 8, 3, 3), window)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


@needs_library
def test_what_is_no_convolution_is_refused():
    image, grad = torch.randn(2, 8, 9, 9), torch.randn(2, 8, 3, 3)
    with pytest.raises(onednn.OneDNNError):
        OneDNNGradient(image, grad, torch.empty(8, 7, 3, 3), [[1, 1], [1, 1], [1, 1]])


@pytest.mark.skipif(
    not {"torch", "onednn"} <= libraries_of("cpu"), reason="weight gradients are XLA's own here"
)
@pytest.mark.parametrize("present", [pytest.param(True, marks=needs_library), False])
def test_programs_use_it(present, cold, monkeypatch):
    """With the library and without; the kernels of other tests have other shapes."""
    kernels = []

    def spy(*arguments):
        kernels.append(OneDNNGradient(*arguments))
        return kernels[-1]

    monkeypatch.setattr(convolution_weight_gradient, "OneDNNGradient", spy)
    if not present:
        monkeypatch.setattr(onednn, "library", lambda: None)
    x, weight = torch.randn(4, 24, 31, 30 + present), torch.randn(40, 24, 3, 3)
    grad, leaves = torch.randn(4, 40, 29, 28 + present), [weight.clone() for _ in range(2)]
    run = compiled(F.conv2d)
    for convolve, leaf in zip((run, F.conv2d), leaves, strict=True):
        convolve(x, leaf.requires_grad_()).backward(grad)
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=1e-4, atol=1e-3)
    assert bool(kernels) == present
