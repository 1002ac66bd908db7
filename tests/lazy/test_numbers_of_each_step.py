"""Numbers that differ at each step are inputs of one program, not constants of many."""

import operator

import pytest
import torch

from xla_dynamo import metrics

FORMS = {
    "full": lambda x, n: torch.full((3,), n, dtype=x.dtype, device=x.device),
    "full_like": torch.full_like,
    "new_full": lambda x, n: x.new_full((2,), n),
    "rsub": lambda x, n: n - x,
    "rsub with alpha": lambda x, n: torch.rsub(x, n, alpha=3),
    **{one.__name__: one for one in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)},
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool)


def compilations():
    return (metrics.metric_data("CompileTime") or (0,))[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_number_that_changes_compiles_nothing(form):
    x = torch.tensor([0.0, 3.0, 5.5, -7.0])
    there = x.to("xla")
    FORMS[form](there, 3.5).cpu()
    before = compilations()
    for number in (5.5, -7.0, 101.25):
        made = FORMS[form](there, number)
        assert torch.equal(made.cpu(), FORMS[form](x, number))
    assert compilations() == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_comparisons_compare_as_eager_does(dtype):
    x = torch.tensor([0, 1, 3, 5, 100]).to(dtype)
    there = x.to("xla")
    for number in (3, 0.1, 5.0, -3, 100, float("inf"), float("nan")):
        for compare in (operator.eq, operator.ne, operator.lt, operator.ge):
            assert torch.equal(compare(there, number).cpu(), compare(x, number)), number


def test_full_like_keeps_strides():
    x = torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last)
    made = torch.full_like(x.to("xla"), 3.7)
    assert made.stride() == x.stride()
    assert torch.equal(made.cpu(), torch.full_like(x, 3.7))
