"""Attention by plans: torch's kernels with no Python in the way, with eager's numbers."""

import threading

import pytest
import torch
import torch.nn.functional as F

from tests.compiling import assert_matches_eager, compiled, watched
from tests.packing import DTYPES, let_plan, needs_onednn, packed_calls
from tests.runtime.test_torch_kernels import (
    CASES,
    MASKS,
    assert_attends_as_eager,
    assert_right_in_other_modes,
)
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.kernels.planned_attention import PlannedAttention, PlannedAttentionGradients
from xla_dynamo.runtime.cpu import torch_functions

pytestmark = [
    needs_onednn,
    pytest.mark.skipif("torch" not in libraries_of("cpu"), reason="torch has other threads here"),
]


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However small the attention is."""
    let_plan(monkeypatch)
    torch.manual_seed(0)


def forms(f, *args):
    """What the plans of a function's programs compute, and its result."""
    run, built = watched(f, fullgraph=True)
    result = run(*args)
    return [call.form for event in built for call in packed_calls(event.program)], result


def test_torch_has_the_functions():
    for form in (PlannedAttention, PlannedAttentionGradients):
        assert torch_functions.has(form.function), "torch's shims moved: see torch_functions"


def test_both_directions_are_plans():
    inputs = [x.requires_grad_() for x in torch.randn(3, 2, 3, 6, 8).unbind()]
    run, built = watched(F.scaled_dot_product_attention, fullgraph=True)
    run(*inputs).sum().backward()
    found = [type(call.form) for event in built for call in packed_calls(event.program)]
    assert found == [PlannedAttention, PlannedAttentionGradients]
    assert not any("xla_dynamo.call" in str(event.program.module) for event in built)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_attention(case, dtype):
    summed = {"rtol": 2e-2, "atol": 1e-2} if "quer" in case and dtype is torch.bfloat16 else {}
    assert_attends_as_eager(*CASES[case], dtype, **summed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, dtype):
    shape, keys = (2, 3, 5, 8), (2, 3, 7, 8)
    made = MASKS[mask](shape, keys)
    assert_attends_as_eager(
        shape, keys, {}, dtype, made.to(dtype) if made.is_floating_point() else made
    )


def test_numbers_that_are_none():
    query, key, value = torch.randn(3, 2, 3, 6, 8).unbind()
    query[0, 0, 0, 0], key[1, 1, 2, 2], value[0, 2, 0, 0] = torch.nan, torch.inf, torch.nan
    f = F.scaled_dot_product_attention
    assert_matches_eager(compiled(f, dynamic=False), query, key, value, equal_nan=True)


def test_in_other_modes():
    assert_right_in_other_modes()


def test_the_number_of_threads_stays():
    inputs = torch.randn(3, 2, 3, 6, 8).unbind()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        compiled(F.scaled_dot_product_attention, dynamic=False)(*inputs)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_several_in_one_program_and_several_threads():
    def attend(*inputs):
        scaled = (F.scaled_dot_product_attention(*(x * n for x in inputs)) for n in range(1, 9))
        return torch.stack([*scaled])

    inputs = torch.randn(3, 2, 8, 40, 8).unbind()
    found, result = forms(attend, *inputs)
    expected = attend(*inputs)
    assert len(found) == 8
    torch.testing.assert_close(result, expected)
    run, right = torch.compile(attend, backend="openxla", dynamic=False), []
    run(*inputs)

    def call():
        right.extend(torch.allclose(run(*inputs), expected, atol=1e-5) for _ in range(50))

    threads = [threading.Thread(target=call) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join(timeout=120) for thread in threads]
    assert right == [True] * 400


def test_memory_stays():
    """The scripts delete the tensors that they make."""
    import psutil

    inputs = torch.randn(3, 4, 8, 256, 64).unbind()
    attend = compiled(F.scaled_dot_product_attention, dynamic=False)
    for _ in range(20):
        attend(*inputs)
    before = psutil.Process().memory_info().rss
    for _ in range(100):
        attend(*inputs)
    assert psutil.Process().memory_info().rss - before < 100 << 20  # 100 results are 210 MB
