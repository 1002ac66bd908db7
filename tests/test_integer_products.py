"""Products in int8 by torch's kernel, with eager's numbers."""

import pytest
import torch

from tests.compiling import EXACT, assert_matches_eager, compiled, watched
from tests.packing import needs_onednn
from tests.test_narrow_products import called, int8
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels import integer_products
from xla_dynamo.kernels.integer_products import IntegerProduct
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.runtime.cpu import integer_products as integer_products_of_few_rows
from xla_dynamo.runtime.cpu import torch_functions

pytestmark = [
    needs_onednn,
    pytest.mark.skipif("torch" not in libraries_of("cpu"), reason="torch has other threads here"),
]
SIZES = [(1, 64, 48), (3, 17, 5), (33, 100, 67), (4, 16, 4), (1, 1, 1), (2, 3, 1)]


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However little there is to multiply, and with several threads."""
    monkeypatch.setattr(integer_products, "FEWEST_IN_PRODUCT", 0)
    monkeypatch.setattr(integer_products, "FEWEST_DIVIDED", 0)


def product(x, weight):
    return torch._int_mm(x, weight.t())


def test_torch_has_the_function():
    assert torch_functions.has("_int_mm_out"), "torch's shims moved: see torch_functions"


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products(sizes):
    rows, inner, columns = sizes
    x, weight = int8(rows, inner), int8(columns, inner)
    result, calls = called(product, x, weight)
    assert calls == ["planned_integer_product"]
    assert result.dtype is torch.int32
    assert torch.equal(result, x.int() @ weight.int().t())


@pytest.mark.skipif(not integer_products_of_few_rows.can_multiply(), reason="it needs AVX512-VNNI")
@pytest.mark.parametrize("rows", range(1, 9))
def test_the_function_of_few_rows(rows):
    """Sizes around those of a vector, and numbers whose sums do not fit 16 bits."""
    for inner in (0, 1, 63, 64, 65, 128, 200):
        for columns in (1, 3, 4, 5, 9):
            x, weight = int8(rows, inner), int8(columns, inner)
            x[:, ::3], weight[:, ::3] = -128, -128
            result = torch.full((columns, rows), 7, dtype=torch.int32)
            addresses = (one.data_ptr() for one in (x, weight, result))
            function = integer_products_of_few_rows.function()
            assert function(*addresses, rows, inner, columns) == 0
            assert torch.equal(result.t(), x.int() @ weight.int().t())


def test_other_processors_multiply_few_rows_by_torch(monkeypatch):
    monkeypatch.setattr(integer_products_of_few_rows, "can_multiply", lambda: False)
    x, weight = int8(2, 80), int8(40, 80)
    result, calls = called(product, x, weight)
    assert calls == ["planned_integer_product"]
    assert torch.equal(result, x.int() @ weight.int().t())


def test_the_least_numbers_do_not_saturate():
    x = torch.full((3, 4000), -128, dtype=torch.int8)
    result, calls = called(product, x, x)
    assert calls == ["planned_integer_product"]
    assert torch.equal(result, torch.full((3, 3), 4000 * 128 * 128, dtype=torch.int32))


@pytest.mark.parametrize("sizes", [(0, 8, 8), (3, 0, 5), (3, 5, 0)], ids=str)
def test_nothing_to_multiply(sizes):
    rows, inner, columns = sizes
    assert_matches_eager(compiled(product), int8(rows, inner), int8(columns, inner), **EXACT)


def test_a_weight_that_lies_otherwise_is_multiplied_by_xla():
    x, weight = int8(3, 32), int8(32, 16)
    result, calls = called(torch._int_mm, x, weight)
    assert not calls
    assert torch.equal(result, x.int() @ weight.int())


def test_in_a_loop_it_is_called_by_python():
    """A loop's body is no place for plans."""
    weight = int8(32, 32)

    def looped(x, weight):
        def body(i, x):
            return i + 1, product(x, weight).to(torch.int8)

        n = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda i, x: i < 3, body, (n, x))[1]

    x = int8(3, 32)
    run, built = watched(looped, fullgraph=True)
    result = run(x, weight)
    assert [event.program.calls_torch for event in built] == [True]
    for _ in range(3):
        x = (x.int() @ weight.int().t()).to(torch.int8)
    assert torch.equal(result, x)


def test_calls_that_are_none():
    with pytest.raises(LoweringError, match="a product 0 x 2 x 3"):
        IntegerProduct(0, 2, 3)


def test_small_products_are_not_shared(monkeypatch):
    assert len(IntegerProduct(2, 8, 10).shares(2)) == 2
    monkeypatch.setattr(integer_products, "FEWEST_DIVIDED", 1 << 20)
    assert IntegerProduct(2, 8, 10).shares(2) == [slice(0, 10)]
