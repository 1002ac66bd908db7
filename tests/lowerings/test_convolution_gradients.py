"""Gradients of convolutions: in whatever form they are computed, they are eager's."""

import pytest
import torch
import torch.nn.functional as F

from tests.comparison import compare_with_exact
from tests.compiling import assert_matches_eager, compiled, watched
from xla_dynamo.kernels import convolution_weight_gradient, onednn_convolution
from xla_dynamo.kernels.libraries import libraries_of

# Images, channels, sizes of the image, channels of the result, window, stride, padding, dilation,
# groups, and whether the convolution is transposed.
CASES = {
    "plain": (2, 8, [9, 8], 16, [3, 3], 1, 1, 1, 1, False),
    "one image": (1, 8, [9, 8], 16, [3, 2], 1, 0, 1, 1, False),
    "many images": (19, 3, [9, 8], 4, [3, 3], 1, 1, 1, 1, False),
    "more weights than results": (2, 16, [2, 2], 64, [3, 3], 1, 1, 1, 1, False),
    "stride and dilation": (3, 4, [11, 12], 6, [3, 3], (2, 1), (2, 1), (1, 2), 1, False),
    "places left over": (2, 4, [8, 9], 6, [3, 3], 4, 0, 1, 1, False),
    "an image of one column": (64, 32, [40, 1], 32, [3, 3], 2, 1, 1, 1, False),
    "one element": (2, 8, [5, 6], 16, [1, 1], 1, 0, 1, 1, False),
    "one element, strided": (2, 8, [5, 6], 16, [1, 1], 2, 0, 1, 1, False),
    "one element, padded": (2, 8, [5, 6], 16, [1, 1], 1, 1, 1, 1, False),
    "patches": (2, 3, [12, 8], 6, [4, 4], 4, 0, 1, 1, False),
    "patches, some left over": (2, 3, [13, 11], 6, [3, 4], (3, 4), 0, 1, 1, False),
    "patches of one dimension": (3, 4, [11], 6, [2], 2, 0, 1, 1, False),
    "patches of three dimensions": (1, 2, [4, 9, 8], 6, [2, 3, 4], (2, 3, 4), 0, 1, 1, False),
    "patches, transposed": (2, 6, [5, 6], 4, [2, 2], 2, 0, 1, 1, True),
    "patches, apart": (2, 3, [12, 8], 6, [2, 2], 2, 0, 2, 1, False),
    "groups": (2, 12, [9, 8], 8, [3, 3], 1, 1, 1, 4, False),
    "groups of one image": (1, 12, [9, 8], 9, [3, 3], 2, 1, 1, 3, False),
    "depthwise": (4, 8, [9, 8], 8, [3, 3], 1, 1, 1, 8, False),
    "depthwise, two each": (1, 8, [9, 8], 16, [5, 5], 2, 2, 1, 8, False),
    "one channel": (2, 1, [9, 8], 1, [3, 3], 1, 1, 1, 1, False),
    "one dimension": (3, 6, [17], 4, [5], 2, 2, 1, 2, False),
    "three dimensions": (2, 4, [5, 6, 7], 6, [3, 2, 3], 1, 1, 1, 1, False),
    "transposed": (2, 6, [5, 6], 4, [4, 4], 2, 1, 1, 1, True),
    "transposed groups": (2, 6, [5, 6], 4, [3, 3], 2, 1, 1, 2, True),
}
CONVOLVE = {
    False: (F.conv1d, F.conv2d, F.conv3d),
    True: (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
}


@pytest.mark.every(5)
@pytest.mark.parametrize("format_", ["row-major", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_gradients(case, dtype, format_, cold, monkeypatch):
    monkeypatch.setattr(onednn_convolution, "FEWEST_IN_CONVOLUTION", 0)
    monkeypatch.setattr(convolution_weight_gradient, "FEWEST_IN_WEIGHT_GRADIENT", 0)
    n, c, sizes, out, window, stride, padding, dilation, groups, transposed = CASES[case]
    weights = [c, out // groups] if transposed else [out, c // groups]
    x, weight = torch.randn(n, c, *sizes, dtype=dtype), torch.randn(*weights, *window, dtype=dtype)
    if format_ == "channels last":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)

    def convolve(x, weight, bias):
        settings = (0, groups, dilation) if transposed else (dilation, groups)
        convolve = CONVOLVE[transposed][len(sizes) - 1]
        return convolve(x, weight, bias, stride, padding, *settings)

    inputs = x, weight, torch.randn(out, dtype=dtype)
    result = convolve(*inputs)
    grad = torch.randn_like(result)
    run, built = watched(convolve, dynamic=False, fullgraph=True)

    def gradients(f, wide):
        leaves = [t.to(wide).requires_grad_() for t in inputs]
        return torch.autograd.grad(f(*leaves), leaves, grad.to(wide))

    exact, expected = gradients(convolve, torch.float64), gradients(convolve, dtype)
    compare_with_exact(exact, expected, gradients(run, dtype))
    product = case in ("one element", "one element, strided", "more weights than results")
    product |= case.startswith("patches") and case != "patches, apart"
    narrow = case == "an image of one column" and dtype is torch.bfloat16  # oneDNN has it wrong
    library = {"torch", "onednn" if dtype is torch.float32 else "onednn_bfloat16"}
    calls = sum(str(event.program.module).count("weight_gradient:") for event in built)
    assert calls == (not product and not narrow and library <= libraries_of("cpu"))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_output_padding_beyond_the_stride(dims):
    torch.manual_seed(0)
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    x = torch.randn(2, 2, *[4] * dims, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, *[3] * dims, dtype=torch.float64, requires_grad=True)

    def f(x, weight):
        return convolve(x, weight, stride=1, padding=1, dilation=3, output_padding=2)

    assert_matches_eager(compiled(f), x, weight)
