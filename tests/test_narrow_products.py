"""Products with weights of narrow types, by machine code that reads no float copy of them."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiling import compiled, watched
from tests.packing import needs_onednn, packed_calls
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels import narrow_products
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.kernels.narrow_products import NarrowProduct
from xla_dynamo.lowerings.target import TORCH_PLANS
from xla_dynamo.runtime.cpu.script_layout import TARGET

pytestmark = [
    needs_onednn,
    pytest.mark.skipif(TORCH_PLANS not in libraries_of("cpu"), reason="torch has no plans here"),
]
DTYPES = [torch.float32, torch.bfloat16]
# Sums of integers of up to 127 in float32, and what is rounded to bfloat16 once.
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-3}, torch.bfloat16: {"rtol": 8e-3, "atol": 1e-2}}
SIZES = [(1, 64, 48), (3, 17, 5), (7, 100, 67), (4, 16, 4), (2, 3, 1), (1, 1, 1)]


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However little there is to multiply, and with several threads."""
    monkeypatch.setattr(narrow_products, "FEWEST_IN_WEIGHT", 0)
    monkeypatch.setattr(narrow_products, "FEWEST_DIVIDED", 0)


def called(f, *args, **how):
    """The result of a compiled function, and the names of the kernels that its programs call."""
    run, built = watched(f, fullgraph=True, **how)
    with torch.no_grad():
        result = run(*args)
    return result, [call.form.name for event in built for call in packed_calls(event.program)]


def int8(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def converted_product(x, weight):
    return x @ weight.to(x.dtype).t()


def transposed_first(x, weight):
    return x @ weight.t().to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_int8(sizes, dtype):
    rows, inner, columns = sizes
    x, weight = torch.randn(rows, inner, dtype=dtype), int8(columns, inner)
    exact = (x.double() @ weight.double().t()).to(dtype)
    for f in (converted_product, transposed_first):
        torch._dynamo.reset()
        result, calls = called(f, x, weight)
        assert calls == ["planned_narrow_product"]
        torch.testing.assert_close(result, exact, **CLOSE[dtype])


def test_a_bias_is_added_before_the_result_is_rounded():
    x, weight = torch.randn(3, 40, dtype=torch.bfloat16), int8(24, 40)
    bias = torch.randn(24, dtype=torch.bfloat16)
    result, calls = called(lambda x, w, b: F.linear(x, w.to(x.dtype), b), x, weight, bias)
    assert calls == ["planned_narrow_product"]
    exact = x.double() @ weight.double().t() + bias.double()
    torch.testing.assert_close(result, exact.bfloat16(), **CLOSE[torch.bfloat16])


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_int8pack_mm(dtype):
    x, weight, scales = torch.randn(5, 96, dtype=dtype), int8(64, 96), torch.rand(64, dtype=dtype)
    result, calls = called(torch.ops.aten._weight_int8pack_mm, x, weight, scales)
    assert calls == ["planned_narrow_product"]
    exact = x.double() @ weight.double().t() * scales.double()
    torch.testing.assert_close(result, exact.to(dtype), **CLOSE[dtype])


def test_several_rows_and_all_values():
    """Each int8, and each of the blocks of rows and columns."""
    weight = torch.arange(-128, 128, dtype=torch.int8).repeat(7, 1)
    for rows in range(1, 9):
        torch._dynamo.reset()
        x = torch.eye(256)[:rows] + torch.eye(256)[200 : 200 + rows]
        result, calls = called(converted_product, x, weight)
        assert calls == ["planned_narrow_product"]
        assert torch.equal(result, x @ weight.float().t())


def test_nothing_to_sum():
    result, _ = called(converted_product, torch.randn(2, 0), int8(3, 0))
    assert torch.equal(result, torch.zeros(2, 3))


def test_numbers_that_are_none():
    x = torch.randn(4, 40)
    x[0, 3], x[1, 39], x[2, 0] = torch.nan, torch.inf, -torch.inf
    weight = int8(9, 40)
    result, calls = called(converted_product, x, weight)
    assert calls == ["planned_narrow_product"]
    torch.testing.assert_close(
        result, converted_product(x, weight), equal_nan=True, **CLOSE[torch.float32]
    )


OTHERS = {
    "a weight whose columns are apart": lambda x, w: x @ w.to(x.dtype),
    "more rows than pay": lambda x, w: x.repeat(100, 1) @ w.to(x.dtype).t(),
    "a stack": lambda x, w: torch.bmm(x[None], w.to(x.dtype).t()[None]),
    "integers that are not narrow": lambda x, w: x @ w.int().to(x.dtype).t(),
}


@pytest.mark.parametrize("f", OTHERS.values(), ids=OTHERS)
def test_other_products_stay(f):
    x, weight = torch.randn(3, 32), int8(32, 32)
    result, calls = called(f, x, weight)
    assert "planned_narrow_product" not in calls
    torch.testing.assert_close(result, f(x, weight), **CLOSE[torch.float32])


def test_libraries_that_are_left_out_are_not_called():
    x, weight = torch.randn(3, 32), int8(32, 32)
    result, calls = called(converted_product, x, weight, libraries=[])
    assert not calls
    torch.testing.assert_close(result, converted_product(x, weight), **CLOSE[torch.float32])


def test_in_a_loop_it_is_called_by_python():
    """A loop's body is no place for plans."""
    weight = int8(32, 32)

    def looped(x, weight):
        def body(i, x):
            return i + 1, torch.tanh(converted_product(x, weight) * 0.01)

        n = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda i, x: i < 3, body, (n, x))[1]

    x = torch.randn(3, 32)
    run, built = watched(looped, fullgraph=True)
    result = run(x, weight)
    assert [event.program.calls_torch for event in built] == [True]
    for _ in range(3):
        x = torch.tanh(converted_product(x, weight) * 0.01)
    torch.testing.assert_close(result, x)


def test_frozen_weights_stay_narrow():
    model = torch.nn.Module()
    model.register_buffer("weight", int8(64, 32))
    model.forward = lambda x: converted_product(x, model.weight)
    x = torch.randn(2, 32)
    run, built = watched(model, fullgraph=True, freeze=True)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), **CLOSE[torch.float32])
    (event,) = built
    text = str(event.program.module)
    (arguments,) = [line for line in text.splitlines() if "@main(" in line]
    assert f"@{TARGET}(" in text
    assert "64x32xi8" in arguments
    assert "64x32xf32" not in arguments


def test_calls_that_are_none():
    with pytest.raises(LoweringError, match=r"the weight is in torch\.int16"):
        NarrowProduct(1, 2, 3, torch.int16)
    with pytest.raises(LoweringError, match="a product -1 x 2 x 3"):
        NarrowProduct(-1, 2, 3, torch.int8)


def test_columns_are_shared_in_blocks():
    call = NarrowProduct(2, 8, 10, torch.int8)
    assert [list(one) for one in call.shares(2)] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert call.shares(9)[-1] == range(8, 10)


def test_another_size_compiles_another_program():
    run = compiled(converted_product, dynamic=False)
    weight = int8(24, 48)
    for rows in (1, 2, 5):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(
            run(x, weight), converted_product(x, weight), **CLOSE[torch.float32]
        )
