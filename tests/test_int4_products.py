"""Weights in int4 as torch packs them for the CPU, and products that read them as they are."""

import pytest
import torch

from tests.compiling import EXACT, assert_matches_eager, compiled, compiled_whole, watched
from tests.packing import needs_onednn
from tests.test_narrow_products import called
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels import narrow_products
from xla_dynamo.kernels.int4_products import CAPABILITY, Int4Product

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16]
needs_vectors = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != CAPABILITY, reason="the functions are for AVX-512"
)
# Rows, inner size, columns, size of a group.
SIZES = [(1, 64, 64, 32), (3, 128, 80, 64), (7, 256, 48, 32), (4, 128, 16, 128), (2, 512, 176, 256)]
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-3}, torch.bfloat16: {"rtol": 8e-3, "atol": 2e-2}}


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However little there is to multiply, and with several threads."""
    monkeypatch.setattr(narrow_products, "FEWEST_IN_WEIGHT", 0)
    monkeypatch.setattr(narrow_products, "FEWEST_DIVIDED", 0)


def weight(columns, inner, group, dtype):
    """A packed weight, its scales and zeros, and the weight in float64."""
    numbers = torch.randint(0, 16, (columns, inner), dtype=torch.int32)
    scales = torch.randn(inner // group, columns, 2).to(dtype)
    scale, zero = (scales[..., i].t().double().repeat_interleave(group, 1) for i in (0, 1))
    packed = aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    return packed, scales, (numbers - 8) * scale + zero


def product(x, packed, scales, group):
    return aten._weight_int4pack_mm_for_cpu(x, packed, group, scales)


@needs_onednn
@needs_vectors
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products(sizes, dtype):
    rows, inner, columns, group = sizes
    packed, scales, exact = weight(columns, inner, group, dtype)
    x = torch.randn(rows, inner, dtype=dtype)
    result, calls = called(product, x, packed, scales, group)
    assert calls == ["planned_int4_product"]
    torch.testing.assert_close(result, (x.double() @ exact.t()).to(dtype), **CLOSE[dtype])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_by_xla(sizes, dtype):
    rows, inner, columns, group = sizes
    packed, scales, exact = weight(columns, inner, group, dtype)
    x = torch.randn(rows, inner, dtype=dtype)
    run = compiled_whole(product, libraries=[])
    expected = x.double() @ exact.t()
    # XLA rounds the weight to the dtype of x.
    most = 1e-5 if dtype is torch.float32 else 1e-2
    error = run(x, packed, scales, group).double() - expected
    assert error.abs().max() <= most * expected.abs().max()


@needs_onednn
@needs_vectors
def test_scales_in_float16_are_widened():
    packed, scales, exact = weight(32, 64, 32, torch.float16)
    x = torch.randn(2, 64, dtype=torch.float16)
    result, calls = called(product, x, packed, scales, 32)
    assert calls == ["planned_int4_product"]
    torch.testing.assert_close(result, (x.double() @ exact.t()).half(), rtol=2e-3, atol=1e-2)


@needs_onednn
@needs_vectors
def test_each_number_in_each_column():
    numbers = torch.arange(80)[:, None].add(torch.arange(64)).remainder(16).int()
    packed = aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    scales = torch.tensor([1.0, 0.0]).expand(2, 80, 2).contiguous()
    for rows in range(1, 9):
        torch._dynamo.reset()
        x = torch.eye(64)[7 * rows : 8 * rows]
        result, _ = called(product, x, packed, scales, 32)
        assert torch.equal(result, x @ (numbers - 8).float().t())


@pytest.mark.parametrize("columns", [16, 32, 48, 64, 80, 96, 112, 208])
def test_packing(columns):
    numbers = torch.randint(0, 16, (columns, 34), dtype=torch.int32)
    run = compiled_whole(lambda x: aten._convert_weight_to_int4pack_for_cpu(x, 1))
    assert_matches_eager(run, numbers, **EXACT)


def test_no_rows_and_many():
    packed, scales, exact = weight(64, 128, 32, torch.float32)
    run = compiled(product, dynamic=False)
    for rows in (0, 130):
        x = torch.randn(rows, 128)
        result = run(x, packed, scales, 32)
        torch.testing.assert_close(result, (x.double() @ exact.t()).float(), **CLOSE[x.dtype])


@needs_onednn
@needs_vectors
def test_in_a_loop_it_is_called_by_python():
    """A loop's body is no place for plans."""
    packed, scales, exact = weight(64, 64, 32, torch.float32)

    def looped(x, packed, scales):
        def body(i, x):
            return i + 1, torch.tanh(product(x, packed, scales, 32) * 0.01)

        n = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda i, x: i < 3, body, (n, x))[1]

    x = torch.randn(3, 64)
    run, built = watched(looped, fullgraph=True)
    result = run(x, packed, scales)
    assert [event.program.calls_torch for event in built] == [True]
    for _ in range(3):
        x = torch.tanh((x.double() @ exact.t()).float() * 0.01)
    torch.testing.assert_close(result, x, **CLOSE[torch.float32])


def test_numbers_that_are_none():
    packed, scales, exact = weight(64, 64, 32, torch.float32)
    x = torch.randn(3, 64)
    x[0, 3], x[1, 63] = torch.nan, torch.inf
    result = compiled(product)(x, packed, scales, 32)
    expected = (x.double() @ exact.t()).float()
    assert torch.equal(result.isfinite(), expected.isfinite())
    torch.testing.assert_close(result[2], expected[2], **CLOSE[torch.float32])


WRONG = {
    "24 columns": (1, 64, 24, 32, torch.float32),
    "in 48s": (1, 64, 32, 48, torch.float32),
    "in 0s": (1, 64, 32, 0, torch.float32),
    r"scales are in torch\.float16": (1, 64, 32, 32, torch.float16),
}


@pytest.mark.parametrize("reason", WRONG)
def test_calls_that_are_none(reason):
    with pytest.raises(LoweringError, match=reason):
        Int4Product(*WRONG[reason])


def test_the_last_columns_stay_with_a_whole_block():
    call = Int4Product(2, 64, 144, 32, torch.float32)
    assert call.shares(4) == [range(64), range(64, 128), range(128, 144)]
