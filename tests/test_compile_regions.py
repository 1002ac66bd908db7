"""Regions that torch traces once, and `flex_attention`: values and gradients of eager's."""

import warnings

import pytest
import torch
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.compiling import assert_matches_eager, compiled, compiled_whole, leaf
from xla_dynamo.runtime import metrics


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    @mark_compile_region
    def forward(self, x):
        return x + torch.relu(self.layer(x))


@pytest.mark.parametrize("make", [torch.randn, leaf])
def test_regions(make):
    model = torch.nn.Sequential(*(Block() for _ in range(3)))
    assert_matches_eager(compiled_whole(model), make(2, 4))
    expected, actual = (
        torch.autograd.grad(f(torch.ones(2, 4)).sum(), list(model.parameters()))
        for f in (model, compiled_whole(model))
    )
    torch.testing.assert_close(actual, expected)


def test_an_operator_without_a_rule_in_a_region_cuts_at_that_operator():
    @mark_compile_region
    def region(x):
        return torch.nonzero(torch.relu(x.sin())).sum(0) + x.exp().sum().int()

    metrics.clear_all()
    x = torch.randn(5, 2)
    assert_matches_eager(compiled(region), x)
    assert [n for n in metrics.counter_names() if n.startswith("aten::")] == ["aten::nonzero"]


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that eager is slow
        yield


def test_flex_attention(quiet):
    slopes = torch.tensor([0.5, 0.25])
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")

    def f(q, k, v):
        def alibi(score, b, h, i, j):
            return score + (j - i) * slopes[h]

        return flex_attention(q, k, v, alibi, mask, enable_gqa=True, return_lse=True)

    assert_matches_eager(
        compiled_whole(f),
        torch.randn(2, 2, 16, 8),
        torch.randn(2, 1, 16, 8),
        torch.randn(2, 1, 16, 8),
    )


def test_flex_attention_of_dynamic_length(quiet):
    f = lambda q, bias: flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i, j])  # noqa: E731
    g = compiled_whole(f, dynamic=True)
    for n in (5, 16, 9):
        q, bias = torch.randn(2, 2, n, 8), torch.randn(2, n, n)
        assert_matches_eager(g, q, bias)


def test_rows_that_see_nothing(quiet):
    mask = create_block_mask(lambda b, h, i, j: (i > j) & (i > 3), None, None, 16, 16, device="cpu")
    assert_matches_eager(
        compiled_whole(lambda q: flex_attention(q, q, q, block_mask=mask, return_lse=True)),
        torch.randn(1, 1, 16, 4),
    )
