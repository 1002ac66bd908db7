"""Products of a few rows, whose matrices are read as they lie."""

import itertools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.comparison import compare, compare_with_exact
from tests.compiling import watched
from tests.packing import DTYPES, let_plan, needs_onednn, packed_calls
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels import onednn_product, row_product
from xla_dynamo.kernels.onednn_product import OneDNNProduct
from xla_dynamo.kernels.planned_product import PlannedProduct
from xla_dynamo.kernels.row_product import RowProduct
from xla_dynamo.runtime.cpu import native_code, row_functions, row_products

pytestmark = needs_onednn
# The dtypes of x, matrix and result.
FLOATS, HALVES = (torch.float32,) * 3, (torch.bfloat16,) * 3
MADE = [FLOATS, HALVES, (*HALVES[:2], torch.float32), (torch.float32, torch.int8, torch.float32)]
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38, 1e-40]


@pytest.fixture(autouse=True, params=[1, 1 << 30], ids=["divided", "whole"])
def always(cold, monkeypatch, request):
    """However small the matrix, by several threads and by one."""
    let_plan(monkeypatch)
    monkeypatch.setattr(onednn_product, "FEWEST_BY_ROWS", 1)
    monkeypatch.setattr(row_product, "_BYTES", request.param)
    monkeypatch.setattr(row_product, "_COLUMNS", 1)
    torch.manual_seed(0)


def check(f, *args):
    """Compare with eager in this dtype and in float64; returns what the plans compute."""
    torch._dynamo.reset()  # or other sizes would be dynamic
    run, built = watched(f, fullgraph=True)
    actual, expected, exact = run(*args), f(*args), f(*(a.double() for a in args))
    compare(expected, actual, values=False)
    compare_with_exact(exact, expected, actual)
    return [call.form for event in built for call in packed_calls(event.program)]


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize(("inner", "columns"), [(1, 1), (7, 3), (40, 70), (129, 33), (16, 257)])
def test_products(dtype, is_transposed, rows, inner, columns):
    x, y = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    y = y.T.contiguous().T if is_transposed else y
    (form,) = check(torch.matmul, x, y)
    assert isinstance(form, RowProduct)
    # A matrix of one row or one column is the same both ways.
    assert form.product.transpose_y == is_transposed or 1 in y.shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_bias_and_a_sum(dtype, is_transposed):
    x, w, b, r = (torch.randn(s).to(dtype) for s in ((3, 40), (40, 50), (50,), (3, 50)))
    w = w.T.contiguous().T if is_transposed else w
    (form,) = check(lambda x, w, b, r: r + torch.addmm(b, x, w), x, w, b, r)
    assert (form.product.bias, form.adds) == (True, True)
    (form,) = check(lambda x, w, r: r + x @ w, x, w, r)
    assert (form.product.bias, form.adds) == (False, True)
    # An activation is computed by XLA, and what is read before the sum is no part of the call.
    (form,) = check(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), x, w, b)
    assert not form.adds
    (form,) = check(lambda x, w, r: [(y := x @ w), y + r], x, w, r)
    assert not form.adds


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_are_onednns(dtype):
    few = onednn_product.MOST_ROWS
    w = torch.randn(40, 50).to(dtype)
    kinds = [type(check(F.linear, torch.randn(n, 50).to(dtype), w)[0]) for n in (few, few + 1)]
    assert kinds == [RowProduct, PlannedProduct]
    many = OneDNNProduct((), few + 1, 50, 40, False, True, (dtype,) * 2, False)
    with pytest.raises(LoweringError, match="the product is of"):
        RowProduct(many)


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_matrices_are_left_as_they_were(dtype, monkeypatch):
    monkeypatch.setattr(onednn_product, "FEWEST_BY_ROWS", 40 * 50)
    x = torch.randn(1, 50).to(dtype)
    found = [check(F.linear, x, torch.randn(n, 50).to(dtype)) for n in (39, 40)]
    assert [[isinstance(f, RowProduct) for f in forms] for forms in found] == [[False], [True]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("freeze", [False, True])
@torch.no_grad()
def test_changed_weights_are_noticed(dtype, freeze):
    """A frozen weight is not packed, either: it is read where it is."""
    model, x = nn.Linear(40, 50).to(dtype), torch.randn(1, 40).to(dtype)
    run, built = watched(model, fullgraph=True, freeze=freeze)
    for _ in range(3):
        torch.testing.assert_close(run(x), model(x), rtol=1e-2, atol=1e-2)
        model.weight.mul_(-2)
        model.bias = nn.Parameter(torch.randn(50).to(dtype))
    (call,) = packed_calls(built[0].program)
    assert isinstance(call.form, RowProduct)
    assert not call.keys


def test_threads_do_not_meet():
    layer, x = nn.Linear(300, 400), [torch.randn(1, 300) for _ in range(4)]
    run, _ = watched(layer)
    right = []

    def use(one):
        with torch.no_grad():
            expected = layer(one)
            close = (torch.allclose(run(one), expected, 1e-5, 1e-5) for _ in range(50))
            right.append(all(close))

    with torch.no_grad():
        run(x[0])
    users = [threading.Thread(target=use, args=(one,)) for one in x]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert right == [True] * 4


# --- the functions, for the registers of this processor and of others ---------------------------


@pytest.fixture(params=["WIDE", "NARROW"], scope="module")
def functions(request):
    """By whether the matrix is transposed, and the dtypes, for one kind of registers."""
    fits = getattr(row_functions, request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_functions, "WIDE", fits)
        patch.setattr(row_functions, "NARROW", fits)
        plain = row_products.function.__wrapped__
        return {(t, *made): plain(t, *made) for t in (False, True) for made in MADE}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_range_of_the_columns(functions, made, is_transposed):
    """Only these are written, for all numbers of rows and sizes that leave a rest."""
    function = functions[is_transposed, *made]
    given, weight, wanted = made
    few, sizes = (1, 2, 3, 5, 8), (1, 15, 16, 33, 70)
    for rows, inner, columns in itertools.product(few, sizes, sizes):
        first = columns // 3
        x, y = torch.randn(rows, inner).to(given), (40 * torch.randn(inner, columns)).to(weight)
        bias, added = torch.randn(columns).to(given), torch.randn(rows, columns).to(wanted)
        matrix = y.T.contiguous() if is_transposed else y
        result = torch.full((rows, columns), 77.0, dtype=wanted)
        start = first * (inner if is_transposed else 1) * weight.itemsize
        failed = function(
            x.data_ptr(),
            matrix.data_ptr() + start,
            bias.data_ptr() + first * given.itemsize,
            added.data_ptr() + first * wanted.itemsize,
            result.data_ptr() + first * wanted.itemsize,
            *(rows, inner, columns - first, columns),
        )
        assert not failed
        assert bool((result[:, :first] == 77).all())
        exact = x.double() @ y.double() + bias.double() + added.double()
        close = {"rtol": 8e-3 if wanted is torch.bfloat16 else 1e-5, "atol": 1e-2}
        torch.testing.assert_close(result[:, first:].double(), exact[:, first:], **close)


@pytest.mark.parametrize("made", MADE[:3])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_special_numbers(functions, made, is_transposed):
    """NaN, infinities, zeros of both signs, and what is beyond bfloat16 when it is rounded."""
    given, _, wanted = made
    y = torch.tensor(SPECIAL * 5, dtype=torch.float32).to(given)[None]
    x, result = torch.ones(1, 1, dtype=given), torch.empty(1, y.numel(), dtype=wanted)
    sizes = 1, 1, y.numel(), y.numel()
    functions[is_transposed, *made](x.data_ptr(), y.data_ptr(), 0, 0, result.data_ptr(), *sizes)
    torch.testing.assert_close(result, y.to(wanted), rtol=0, atol=0, equal_nan=True)
    noise = torch.tensor([0x7F800001, 0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    if wanted is torch.bfloat16:  # NaN of all kinds stay NaN
        added = noise.to(torch.bfloat16)
        y = torch.ones(1, 3, dtype=given)
        result = torch.empty(1, 3, dtype=wanted)
        addresses = x.data_ptr(), y.data_ptr(), 0, added.data_ptr(), result.data_ptr()
        functions[is_transposed, *made](*addresses, 1, 1, 3, 3)
        assert bool(result.isnan().all())


def test_without_memory_it_says_so(monkeypatch):
    """C's memory is used up: the plan fails with a message, and nothing is written."""
    text = row_functions.written(True, *FLOATS, row_functions.NARROW)
    none = native_code.load(
        "define ptr @none(i64 %0) {\n ret ptr null\n}\n"
        "define void @nothing(ptr %0) {\n ret void\n}\n",
        {},
    )
    address = native_code.load(text, {"malloc": none["none"], "free": none["nothing"]})
    assert row_products.of_address(address["row_product"])(*[0] * 5, 1, 1, 1, 1) == 1
