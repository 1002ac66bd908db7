"""Reductions that are written as several: the same numbers."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xla_dynamo
from tests.comparison import compare_with_exact
from tests.compiling import assert_matches_eager, compiled_anew
from xla_dynamo.lowerings.passes import split_reductions


@pytest.fixture
def small(monkeypatch):
    """All that is split is split at small sizes."""
    for name, size in {"FEWEST": 1, "_AT_A_TIME": 4, "_WINDOW": 5, "_LONGEST": 7}.items():
        monkeypatch.setattr(split_reductions, name, size)


REDUCTIONS = {
    "sum": torch.sum,
    "mean of absolutes": lambda x, dims: x.abs().mean(dims),
    "amax": torch.amax,
    "amin": torch.amin,
    "any": lambda x, dims: (x > 1).any(dims).int(),
    "all": lambda x, dims: (x < 1).all(dims).int(),
    "deviation": lambda x, dims: x.var(dims),
    "logsumexp": torch.logsumexp,
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")  # of one element
@settings(
    max_examples=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it is the same for all
)
@given(st.data())
def test_any_dimensions(small, data):
    shape = data.draw(st.lists(st.integers(1, 23), min_size=1, max_size=5), "shape")
    while math.prod(shape) > 20000:
        shape.pop()
    rank = len(shape)
    dims = data.draw(st.sets(st.integers(0, rank - 1), min_size=1), "dims")
    turned = data.draw(st.permutations(range(rank)), "permutation")
    reduce = REDUCTIONS[data.draw(st.sampled_from(sorted(REDUCTIONS)), "reduction")]

    def f(x):
        y = x.permute(turned)
        return reduce(y * 1.5, tuple(dims)), reduce(y, tuple(dims))

    x = torch.randn(shape)
    compare_with_exact(
        f(x.double()), f(x), compiled_anew(f, dynamic=False)(x), factor=20
    )  # sums may cancel


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("dims", [0, 1, (0, 2), (0, 1, 2)])
def test_whole_numbers(small, dtype, dims):
    x = torch.randint(-(2**62), 2**62, (13, 11, 9)).to(dtype)

    def f(x):
        return torch.sum(x, dims), torch.amax(x, dims), torch.amin(x, dims)

    for expected, actual in zip(f(x), compiled_anew(f, dynamic=False)(x), strict=True):
        assert torch.equal(expected, actual)


def test_products():
    def f(x):
        return x.prod(0), x.prod(1), x.prod()

    x = 1 + torch.randn(40, 300, dtype=torch.float64) / 100
    assert_matches_eager(compiled_anew(f, dynamic=False), x)


@pytest.mark.parametrize("dims", [0, 1, (0, 1)])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(small, number, dims):
    x = torch.randn(23, 19)
    x[17, 13] = number

    def f(x):
        return torch.sum(x, dims), torch.amax(x, dims), torch.amin(x, dims)

    assert_matches_eager(compiled_anew(f, dynamic=False), x, equal_nan=True)


def test_long_rows_lose_no_precision():
    x = torch.full((1 << 24,), 0.1)
    assert abs(compiled_anew(torch.sum, dynamic=False)(x).double() / x.double().sum() - 1) < 1e-6
    x = torch.rand(3, 1_000_003)
    f = compiled_anew(lambda x: x.sum(1), dynamic=False)
    torch.testing.assert_close(f(x).double(), x.double().sum(1), rtol=1e-6, atol=0)


def lowered(f, *args):
    (built,) = xla_dynamo.explain(f)(*args).executables
    return built.stablehlo


def test_rows_are_left_whole():
    text = lowered(lambda x: F.layer_norm(x, (768,)), torch.randn(64, 768))
    assert text.count("stablehlo.reduce(") == 2
    assert "reduce_window" not in text


def test_columns_are_reduced_some_rows_at_a_time():
    text = lowered(lambda x: x.sum((0, 1)), torch.randn(64, 48, 96))
    sizes = re.findall(r"stablehlo.reduce\(.*-> tensor<([x\d]+)f32>", text)
    assert sizes == ["64x3x96x", "96x"]


def test_small_ones_are_left_alone():
    text = lowered(lambda x: x.sum(0), torch.randn(100, 7))
    assert "reduce_window" not in text


def test_inside_a_loop(small):
    def f(x):
        return torch.while_loop(
            lambda i, _: i < 3, lambda i, x: (i + 1, x + x.sum(0) / 50), (torch.tensor(0), x)
        )[1]

    x = torch.randn(37, 6)
    assert_matches_eager(compiled_anew(f, dynamic=False), x)
