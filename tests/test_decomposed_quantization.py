"""PT2E's operators of quantized numbers, with eager's numbers, and a model that it quantized."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import nn

from tests.compiling import EXACT, assert_matches_eager, compiled_whole

ops = torch.ops.quantized_decomposed
DTYPES = [torch.float32, torch.bfloat16]
HALVES = (torch.arange(-600, 600) * 0.05).view(40, 30)  # some are rounded to even numbers


def check(f, *args):
    assert_matches_eager(compiled_whole(f), *args, **EXACT)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("point", [0, 3])
def test_a_scale_of_all_elements(dtype, point):
    def rounded(x):
        q = ops.quantize_per_tensor(x, 0.1, point, -128, 127, torch.int8)
        return q, ops.dequantize_per_tensor(q, 0.1, point, -128, 127, torch.int8)

    check(rounded, HALVES.to(dtype))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_scale_in_a_tensor(kind):
    def rounded(x, scale, point):
        q = ops.quantize_per_tensor.tensor(x, scale, point, 0, 255, torch.uint8)
        return q, ops.dequantize_per_tensor.tensor(q, scale, point, 0, 255, torch.uint8)

    check(rounded, HALVES, torch.tensor([0.07], dtype=kind), torch.tensor([100]))


def test_a_range_in_tensors():
    def rounded(x, scale, point, low, high):
        q = ops.quantize_per_tensor.tensor2(x, scale, point, low, high, torch.int8)
        return q, ops.dequantize_per_tensor.tensor2(q, scale, point, low, high, torch.int8)

    check(rounded, HALVES, *map(torch.tensor, (0.07, 5, -100, 90)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scale_of_each_channel(dtype, axis):
    count = HALVES.shape[axis]

    def rounded(x, scales, points):
        q = ops.quantize_per_channel(x, scales, points, axis, -128, 127, torch.int8)
        return q, ops.dequantize_per_channel(q, scales, points, axis, -128, 127, torch.int8)

    check(rounded, HALVES.to(dtype), torch.rand(count) + 0.01, torch.randint(-9, 9, (count,)))


@pytest.mark.parametrize("axis", [0, 1])
def test_without_zero_points_and_into_another_dtype(axis):
    q = torch.randint(-128, 128, (20, 30), dtype=torch.int8)

    def widened(q, scales):
        return ops.dequantize_per_channel(
            q, scales, None, axis, -128, 127, torch.int8, out_dtype=torch.bfloat16
        ), ops.dequantize_per_tensor(q, 0.1, 2, -128, 127, torch.int8, out_dtype=torch.bfloat16)

    check(widened, q, torch.rand(q.shape[axis]))


@pytest.mark.parametrize("x", [HALVES, HALVES.abs() + 1, -HALVES.abs(), torch.zeros(3, 4)])
def test_chosen_scales(x):
    check(lambda x: ops.choose_qparams(x, -128, 127, 1e-7, torch.int8), x)


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_a_model(is_dynamic, others_may_warn):
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32)).eval()
    x = torch.randn(3, 64)
    quantizer = x86.X86InductorQuantizer()
    settings = x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic)
    prepared = prepare_pt2e(
        torch.export.export(model, (x,)).module(), quantizer.set_global(settings)
    )
    prepared(x)
    converted = convert_pt2e(prepared)
    assert "quantized_decomposed" in str(converted.graph)
    run = compiled_whole(converted)
    with torch.no_grad():
        torch.testing.assert_close(run(x), converted(x), rtol=1e-4, atol=1e-4)
