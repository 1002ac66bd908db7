"""Attention by plans: torch's kernels with no Python in the way, with eager's numbers."""

import threading

import pytest
import torch
import torch.nn.functional as F
from jax.extend.mlir import ir

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
from xla_dynamo.lowerings.builders.functions import main_of
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
    assert not any(event.program.calls_torch for event in built)  # signals need not wait


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


# --- query, key and value in one memory ----------------------------------------------------------

HEADS, SIZE, LENGTH, BATCH = 3, 8, 6, 2
WIDTH = HEADS * SIZE


def heads_last(x):
    """[batch, length, width] to [batch, heads, length, size]."""
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def in_order(x, order):
    """Query, key and value are these parts."""
    parts = x.chunk(3, -1)
    return [heads_last(parts[i]) for i in order]


SPLITS = {
    "stacked in front": lambda x: (
        x.reshape(BATCH, LENGTH, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
    ),
    "chunks of features": lambda x: map(heads_last, x.chunk(3, -1)),
    "heads, then chunks": lambda x: x.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2).chunk(3, -1),
    "another order": lambda x: in_order(x, [2, 0, 1]),
    "one for two": lambda x: in_order(x, [0, 1, 1]),
    "features apart": lambda x: x.view(BATCH, LENGTH, HEADS, SIZE, 3).transpose(1, 2).unbind(-1),
    "steps": lambda x: [heads_last(x.view(BATCH, LENGTH, -1, 3)[..., i]) for i in range(3)],
}
TOGETHER = ["stacked in front", "chunks of features", "heads, then chunks", "another order"]


class OneProduct(torch.nn.Module):
    """Attention whose query, key and value are parts of the result of one layer."""

    def __init__(self, split, *, is_causal=False):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.split, self.is_causal = split, is_causal

    def forward(self, x, mask=None):
        query, key, value = self.split(self.inner(x))
        y = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.is_causal
        )
        return self.outer(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", SPLITS)
def test_parts_of_one_product(split, dtype):
    module = OneProduct(SPLITS[split], is_causal=True).to(dtype)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
    tolerances = {"rtol": 1e-5, "atol": 1e-6} if dtype is torch.float32 else {}
    assert_matches_eager(compiled(module, dynamic=False), x, **tolerances)


def test_parts_of_one_product_with_a_mask():
    module = OneProduct(SPLITS["chunks of features"])
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    mask = torch.randn(BATCH, 1, LENGTH, LENGTH)
    assert_matches_eager(compiled(module, dynamic=False), x, mask, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("split", TOGETHER)
def test_parts_are_read_and_written_where_they_lie(split):
    """No program has a copy of them, and the forward saves the product's result alone."""
    run, built = watched(OneProduct(SPLITS[split]), fullgraph=True)
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    run(x).sum().backward()
    forward, backward = ([call.form for call in packed_calls(event.program)] for event in built)
    (attention,) = (form for form in forward if isinstance(form, PlannedAttention))
    assert [one.memory for one in attention.given] == [0, 0, 0]
    (gradients,) = (form for form in backward if isinstance(form, PlannedAttentionGradients))
    memories = [one.memory for one in gradients.given]
    assert memories[1:4] == [memories[1]] * 3
    assert [one.memory for one in gradients.made] == [0, 0, 0]
    assert "stablehlo.concatenate" not in str(built[1].program.module)
    results = main_of(built[0].program.module).type.results
    saved = [list(type_.shape) for type_ in map(ir.RankedTensorType, results)]
    assert saved.count([BATCH * LENGTH, 3 * WIDTH]) == 1


def test_a_part_that_is_used_elsewhere_too():
    """Its gradient is a sum of two."""

    def f(x):
        query, key, value = SPLITS["chunks of features"](x)
        return F.scaled_dot_product_attention(query, key, value), query.square(), value

    x = torch.randn(BATCH, LENGTH, 3 * WIDTH, requires_grad=True)
    assert_matches_eager(compiled(f, dynamic=False), x, rtol=1e-5, atol=1e-6)


def test_parts_of_a_part():
    """Of some rows, which are not all rows of what is in memory."""

    def f(x):
        query, key, value = SPLITS["chunks of features"](x[1:3, 2:])
        return F.scaled_dot_product_attention(query, key, value)

    x = torch.randn(BATCH + 2, LENGTH + 2, 3 * WIDTH)
    found, result = forms(f, x)
    (attention,) = (form for form in found if isinstance(form, PlannedAttention))
    assert {one.memory for one in attention.given} == {0}
    torch.testing.assert_close(result, f(x))


# --- heads that are repeated ---------------------------------------------------------------------


def repeat_heads(x, times):
    """As transformers repeats the heads of keys and values for grouped queries."""
    batch, heads, length, size = x.shape
    x = x[:, :, None].expand(batch, heads, times, length, size)
    return x.reshape(batch, heads * times, length, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 5])
def test_repeated_heads_are_read_where_they_are(queries, dtype):
    def f(query, key, value):
        return F.scaled_dot_product_attention(query, repeat_heads(key, 3), repeat_heads(value, 3))

    query = torch.randn(2, 6, queries, 8, dtype=dtype)
    key, value = torch.randn(2, 2, 2, 7, 8, dtype=dtype).unbind()
    found, result = forms(f, query, key, value)
    assert found[0].call.key == found[0].call.value == (2, 2, 7, 8)
    torch.testing.assert_close(result, f(query, key, value))


def test_gradients_of_repeated_heads():
    def f(query, key, value):
        return F.scaled_dot_product_attention(query, repeat_heads(key, 3), repeat_heads(value, 3))

    leaves = [torch.randn(2, heads, 5, 8, requires_grad=True) for heads in (6, 2, 2)]
    assert_matches_eager(compiled(f, dynamic=False), *leaves, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("repeat", [
    lambda x: x.repeat(1, 3, 1, 1),  # all heads, three times
    lambda x: repeat_heads(x, 3).flip(1),
    lambda x: x[:, :1].expand(2, 6, 7, 8),
    lambda x: x[:, :, None, :1].expand(2, 2, 3, 7, 8).reshape(2, 6, 7, 8),
])  # fmt: skip
def test_other_repeats(repeat):
    def f(query, key, value):
        return F.scaled_dot_product_attention(query, repeat(key), repeat_heads(value, 3))

    query, (key, value) = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 2, 7, 8).unbind()
    torch.testing.assert_close(compiled(f, dynamic=False)(query, key, value), f(query, key, value))


def test_a_gradient_that_is_joined_twice():
    """Another one is not read at all, so there are as many operands as gradients."""
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    def f(*given):
        query, key, _ = operator(*given, 0.0, False)
        return torch.cat([query, query, key], 1) + 0

    x = [torch.randn(2, 3, 6, 8) for _ in range(3)]
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*x)
    given = torch.randn_like(output), *x, output, sums
    torch.testing.assert_close(compiled(f, dynamic=False)(*given), f(*given))
