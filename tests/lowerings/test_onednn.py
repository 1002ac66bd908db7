"""Convolutions and products by XLA's calls of oneDNN: cold, and of sizes below those that pay.

What oneDNN refuses ends the process, so a failure here may be that pytest dies.
"""

import itertools
import threading

import pytest
import torch
import torch.nn.functional as F

from tests.comparison import compare, compare_with_exact
from tests.compiling import compiled, watched
from tests.op_database import operators
from tests.op_sweep import check
from xla_dynamo import OptionError
from xla_dynamo.kernels import onednn_convolution, onednn_product
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.lowerings.target import ONEDNN_PLANS
from xla_dynamo.options import Options
from xla_dynamo.programs import targets

DTYPES = (torch.float32, torch.bfloat16)
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However little there is to multiply, and without plans (`tests/test_planned_products.py`)."""
    monkeypatch.setattr(targets, "libraries_of", lambda name: libraries_of(name) - {ONEDNN_PLANS})
    monkeypatch.setattr(onednn_convolution, "FEWEST_IN_CONVOLUTION", 0)
    monkeypatch.setattr(onednn_product, "FEWEST_IN_PRODUCT", dict.fromkeys(DTYPES, 0))
    torch.manual_seed(0)


def calls_in(f, *args, **options):
    """How many calls of oneDNN the programs of a function have; and its result."""
    run, built = watched(f, fullgraph=True, **options)
    result = run(*args)
    return sum(str(event.program.module).count("__onednn$") for event in built), result


def assert_called_and_right(f, *args, is_called=True):
    """Compare with eager in this dtype and in float64, and see whether oneDNN was called."""
    count, actual = calls_in(f, *args)
    expected, exact = f(*args), f(*(a.double() for a in args))
    compare(expected, actual, values=False)
    compare_with_exact(exact, expected, actual)
    dtype = "onednn_bfloat16" if args[0].dtype is torch.bfloat16 else "onednn"
    assert (count > 0) == (is_called and dtype in libraries_of("cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("groups", "stride", "padding", "dilation", "bias"),
    [(1, 1, 0, 1, True), (1, 2, 1, 1, False), (12, 1, 1, 1, True), (3, 2, 2, 2, True)],
)
def test_convolution(dtype, rank, groups, stride, padding, dilation, bias):
    x = torch.randn(3, 12, *(9, 8, 7)[:rank], dtype=dtype)
    weight = torch.randn(12, 12 // groups, *(3, 2, 3)[:rank], dtype=dtype)
    biases = [torch.randn(12, dtype=dtype)] if bias else []

    def f(x, weight, bias=None):
        return CONVOLVE[rank](x, weight, bias, stride, padding, dilation, groups)

    # Not all depthwise ones: see WRONG_IN_ONEDNN.
    is_called = (groups, rank) != (12, 1) and (groups, rank, dtype) != (12, 3, torch.bfloat16)
    assert_called_and_right(f, x, weight, *biases, is_called=is_called)


# Sizes at which oneDNN itself reads beyond the image, which may be a crash in eager torch too; of
# the last XLA's threads for it crash or hang where there is no AVX-512.
WRONG_IN_ONEDNN = {
    "one element in a strided dimension": ((8, 16, 20, 3), (32, 16, 3, 3), (1, 2), (1, 0), 1, 1),
    "all is padding": ((8, 32, 1, 12), (64, 32, 3, 7), (2, 1), (3, 0), (2, 1), 1),
    "all is padding, three": ((8, 4, 4, 28, 1), (64, 4, 2, 3, 1), (1, 2, 2), (0, 2, 1), 2, 1),
    "a window in the padding": ((1, 64, 33), (128, 8, 3), 1, 3, 1, 8),
    "few channels": ((8, 2, 1, 32, 32), (64, 1, 3, 3, 3), 1, 1, 1, 2),
    "a thin image": ((8, 4, 1, 9, 9), (8, 4, 3, 3, 3), 1, 1, 1, 1),
    "each channel by itself": ((4, 1536, 64), (1536, 1, 4), 1, 3, 1, 1536),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", WRONG_IN_ONEDNN.values(), ids=WRONG_IN_ONEDNN)
def test_what_onednn_gets_wrong(sizes, dtype):
    image, kernel, *window, groups = sizes
    x, weight = torch.randn(image, dtype=dtype), torch.randn(kernel, dtype=dtype)

    def f(x, weight):
        return CONVOLVE[x.dim() - 2](x, weight, None, *window, groups)

    _, actual = calls_in(f, x, weight)
    exact = f(x.double(), weight.double())
    tolerance = torch.finfo(dtype).eps * exact.abs().max().item()
    torch.testing.assert_close(actual.double(), exact, rtol=0, atol=16 * tolerance)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 3])
def test_transposed_convolution(rank, groups):
    x, weight = torch.randn(2, 6, *[5] * rank), torch.randn(6, 4, *[3] * rank)

    def f(x, weight):
        return TRANSPOSED[rank](x, weight, padding=1, dilation=2, groups=groups)

    assert_called_and_right(f, x, weight)


@pytest.mark.parametrize("kernel", [(1, 1), (4, 3)])
def test_memory_formats_and_views(kernel):
    image = torch.randn(2, 5, 12, 12)
    weight = torch.randn(7, 5, *kernel)
    forms = (
        image.to(memory_format=torch.channels_last),
        image.transpose(2, 3),
        image[:, :, 1:, 2:],
        image[:1].expand(4, 5, 12, 12),
        image[0],
    )
    for x in forms:
        torch._dynamo.reset()
        assert_called_and_right(lambda x, w: F.conv2d(x, w, padding="same").relu(), x, weight)
        assert_called_and_right(
            lambda x, w: F.conv2d(x, w), x, weight.to(memory_format=torch.channels_last)
        )


def test_nan_and_infinity_stay_where_they_are():
    x = torch.randn(1, 4, 6, 6)
    x[0, 0, 0, 0], x[0, 1, 3, 3], x[0, 2, 5, 5] = float("nan"), float("inf"), -float("inf")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 1)
    )
    with torch.no_grad():
        _, actual = calls_in(model, x)
        torch.testing.assert_close(actual, model(x), equal_nan=True)
    weight = torch.randn(5, 3)
    weight[1, 1], factor = float("nan"), torch.tensor([[1.0, 2, 3], [float("inf"), 0, 1]])
    _, actual = calls_in(F.linear, factor, weight)
    torch.testing.assert_close(actual, F.linear(factor, weight), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turns", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("stack", [(), (3,), (2, 3)])
def test_products(dtype, turns, stack):
    x, y = torch.randn(*stack, 5, 7, dtype=dtype), torch.randn(*stack, 7, 4, dtype=dtype)
    x, y = (t.mT.contiguous().mT if turn else t for t, turn in zip((x, y), turns, strict=True))
    assert_called_and_right(
        torch.matmul, x, y, is_called=bool(dtype.itemsize == 2 or stack or any(turns))
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [(), (1,), (4,), (1, 4), (5, 4)])
def test_biases(dtype, bias):
    added, x, y = (torch.randn(s, dtype=dtype) for s in (bias, (5, 7), (4, 7)))
    assert_called_and_right(lambda a, x, y: torch.addmm(a, x, y.T), added, x, y)
    assert_called_and_right(lambda a, x, y: torch.addmm(a, x, y.T, beta=2, alpha=0.5), added, x, y)


def test_products_of_nothing():
    for x, y in (((5, 0), (0, 4)), ((0, 3), (3, 4)), ((2, 5, 0), (2, 0, 4))):
        x, y = torch.randn(x), torch.randn(y)
        torch.testing.assert_close(calls_in(torch.matmul, x, y)[1], torch.matmul(x, y))
    added = torch.randn(4)
    x, y = torch.randn(5, 0), torch.randn(0, 4)
    torch.testing.assert_close(calls_in(torch.addmm, added, x, y)[1], added.expand(5, 4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(dtype):
    query, key, value = (torch.randn(2, 4, n, 8, dtype=dtype) for n in (5, 6, 6))
    assert_called_and_right(F.scaled_dot_product_attention, query, key, value)


SWEPT = (
    *(f"nn.functional.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)),
    *("nn.functional.linear", "nn.functional.bilinear"),
    "nn.functional.scaled_dot_product_attention",
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "einsum"),
)


# A float32 convolution in training is XLA's own.
CASES = [
    (name, dtype, form)
    for name, dtype, form in itertools.product(SWEPT, DTYPES, ("values", "gradients"))
    if (dtype, form) != (torch.float32, "gradients") or "conv" not in name
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "form"), CASES)
def test_operators(name, dtype, form):
    found = [op for op in operators(dtype, form) if op.name == name]
    assert found
    for op in found:
        outcome = check(op, dtype, None if form == "values" else 4, form=form)
        assert outcome.status == "pass", outcome.detail


def test_threads():
    model = torch.nn.Conv2d(3, 8, 3)
    images = [torch.randn(2, 3, 10, 10) for _ in range(6)]
    with torch.no_grad():
        expected = [model(x) for x in images]
        run = compiled(model)
        run(images[0])
    failures = []

    def work(x, result):
        with torch.no_grad():
            right = [torch.allclose(run(x), result, atol=1e-5) for _ in range(50)]
        failures.append(right.count(False))

    threads = [threading.Thread(target=work, args=a) for a in zip(images, expected, strict=True)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert failures == [0] * 6


def test_without():
    x, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    count, actual = calls_in(F.conv2d, x, weight, libraries=[])
    assert not count
    torch.testing.assert_close(actual, F.conv2d(x, weight))
    for wrong in ("onednn", ["mkl"], None):
        with pytest.raises(OptionError, match="must be a list out of"):
            Options.parse({"libraries": wrong})


def test_what_is_small_is_left_to_xla(monkeypatch):
    monkeypatch.undo()
    assert calls_in(F.conv2d, torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))[0] == 0
    assert calls_in(torch.mm, torch.randn(8, 8), torch.randn(8, 8))[0] == 0
