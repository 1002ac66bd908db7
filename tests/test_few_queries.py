"""Attention of a few queries by our own function has eager's numbers, and reads what is seen."""

import threading

import pytest
import torch
import torch.nn.functional as F

from tests.compiling import compiled, watched
from tests.packing import DTYPES, let_plan, needs_onednn, packed_calls
from xla_dynamo.kernels import attention
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.kernels.planned_attention import PlannedAttention
from xla_dynamo.runtime.cpu import masked_attention

pytestmark = [
    needs_onednn,
    pytest.mark.skipif("torch" not in libraries_of("cpu"), reason="torch has other threads here"),
]
HIDDEN = -torch.inf
# Of batch, heads, heads of keys, queries, keys and a head's size.
SIZES = {
    "one query": (1, 12, 12, 1, 256, 64),
    "shared keys": (2, 12, 4, 1, 77, 64),
    "three heads side by side": (3, 6, 2, 8, 5, 48),
    "five for one": (1, 10, 2, 3, 33, 16),
    "one key": (2, 2, 1, 4, 1, 32),
    "large heads": (1, 4, 1, 2, 19, 512),
}


def _window(batch, heads, queries, keys):
    """Another part of the keys for each of the batch."""
    made = torch.zeros(batch, 1, queries, keys)
    for i in range(batch):
        made[i, ..., keys // 2 + i + 1 :] = HIDDEN
        made[i, ..., : min(i, keys // 2)] = HIDDEN
    return made


def _random(batch, heads, queries, keys):
    """Some heads see nothing, beside others that do."""
    hidden = torch.rand(batch, heads, queries, keys) < 0.6
    hidden[:, 0, 0] = True
    return torch.randn(batch, heads, queries, keys).masked_fill(hidden, HIDDEN)


MASKS = {
    "none": lambda *sizes: None,
    "a window": _window,
    "any": _random,
    "nothing is seen": lambda b, h, q, k: torch.full((1, 1, q, k), HIDDEN),
    "booleans": lambda b, h, q, k: torch.rand(1, 1, q, k) < 0.4,
    "by head": lambda b, h, q, k: torch.randn(1, h, 1, k),
}


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However small the attention is."""
    let_plan(monkeypatch)
    monkeypatch.setattr(attention, "MOST_QUERIES", 8)
    torch.manual_seed(0)


@pytest.fixture
def asked(monkeypatch):
    """The functions that were asked for."""
    found, make = [], masked_attention.function
    monkeypatch.setattr(
        masked_attention, "function", lambda *args: found.append(args) or make(*args)
    )
    return found


def _inputs(sizes, dtype):
    """Queries as a linear layer leaves them, and keys and values as a cache has them."""
    batch, heads, kv_heads, queries, keys, size = sizes
    query = torch.randn(batch, queries, heads, size).to(dtype).transpose(1, 2)
    return query, *torch.randn(2, batch, kv_heads, keys, size).to(dtype).unbind()


def _attend(query, key, value, mask=None, **settings):
    shared = query.shape[1] != key.shape[1]
    settings = {"enable_gqa": shared, **settings}
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **settings)


def _check(inputs, mask, **settings):
    """Compare with attention in float64: no farther off than eager, but for rounding."""
    run = compiled(_attend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        found, expected = run(*inputs, mask, **settings), _attend(*inputs, mask, **settings)
    is_added = mask is not None and mask.is_floating_point()
    exact = _attend(*(x.double() for x in inputs), mask.double() if is_added else mask, **settings)
    torch.testing.assert_close(found.isnan(), expected.isnan())
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    off = (expected.double() - exact).nan_to_num().abs().max()
    least = torch.finfo(found.dtype).eps * exact.nan_to_num().abs().max()
    assert (found.double() - exact).nan_to_num().abs().max() <= 1.5 * off + 2 * least


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES)
def test_numbers(sizes, mask, dtype, asked):
    made = MASKS[mask](*(SIZES[sizes][i] for i in (0, 1, 3, 4)))
    if made is not None and made.is_floating_point():
        made = made.to(dtype)
    _check(_inputs(SIZES[sizes], dtype), made)
    assert len(asked) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_settings(dtype, asked):
    _check(_inputs((2, 4, 4, 5, 9, 16), dtype), None, is_causal=True)
    _check(_inputs((2, 4, 4, 5, 3, 16), dtype), None, is_causal=True, scale=0.3)
    _check(_inputs((1, 4, 2, 2, 40, 64), dtype), torch.randn(2, 40).to(dtype), scale=2.0)
    assert len(asked) == 3


def test_a_mask_in_float32_over_bfloat16(asked):
    mask = torch.randn(1, 1, 1, 50).masked_fill(torch.arange(50) > 30, HIDDEN)
    if torch.bfloat16 in DTYPES:
        run = compiled(lambda *args: _attend(*args[:3], args[3].float()), fullgraph=True)
        inputs = _inputs((1, 4, 2, 1, 50, 64), torch.bfloat16)
        exact = _attend(*(x.double() for x in inputs), mask.double())
        with torch.no_grad():
            torch.testing.assert_close(run(*inputs, mask).double(), exact, rtol=2e-2, atol=1e-2)


def test_what_torchs_kernel_attends_for(asked):
    """Heads of other sizes, values of another one, and more queries."""
    for sizes in ((1, 2, 2, 1, 9, 40), (1, 2, 2, 9, 9, 64)):
        _check(_inputs(sizes, torch.float32), None)
    assert not asked


def test_numbers_that_are_none(asked):
    """Of a query, of a key that is seen, and scores that are infinite."""
    for place, number in ((0, torch.nan), (1, torch.nan), (2, torch.nan), (1, torch.inf)):
        inputs = _inputs((1, 4, 2, 2, 20, 32), torch.float32)
        inputs[place][0, 1, 0, 3] = number
        _check(inputs, _window(1, 4, 2, 20))


def test_what_is_hidden_is_not_read(asked):
    """A cache has anything there: behind the last token, and before a window or a prompt."""
    query, key, value = _inputs((2, 4, 2, 1, 64, 32), torch.float32)
    mask = torch.full((2, 1, 1, 64), HIDDEN)
    mask[0, ..., 5:20], mask[1, ..., 40:41] = 0, 0
    run = compiled(_attend, fullgraph=True)
    with torch.no_grad():
        expected = _attend(query, key, value, mask)
        hidden = mask.isneginf().transpose(2, 3)
        found = run(query, *(x.masked_fill(hidden, torch.nan) for x in (key, value)), mask)
    torch.testing.assert_close(found, expected)


def test_views_are_read_where_they_lie(asked):
    """One product's queries, keys and values, and a part of a cache."""

    def attend(joined, cache):
        query, key, value = joined.view(2, 3, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return _attend(query, key, value) + _attend(
            query, cache[0, :, :, 2:9], cache[1, :, :, 3:10]
        )

    joined, cache = torch.randn(2, 3, 3 * 64), torch.randn(2, 2, 4, 12, 16)
    run, built = watched(attend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(run(joined, cache), attend(joined, cache))
    forms = [call.form for event in built for call in packed_calls(event.program)]
    assert [type(form) for form in forms] == [PlannedAttention] * 2
    assert len({lying.memory for lying in forms[0].given}) == 1
    assert len(asked) == 2


def test_gradients_are_those_of_eager(asked):
    inputs = [x.requires_grad_() for x in _inputs((2, 4, 4, 3, 20, 32), torch.float32)]
    mask = _window(2, 4, 3, 20)
    run = compiled(_attend, fullgraph=True)
    found = torch.autograd.grad(run(*inputs, mask).square().sum(), inputs)
    expected = torch.autograd.grad(_attend(*inputs, mask).square().sum(), inputs)
    torch.testing.assert_close(found, expected)
    assert len(asked) == 1


def test_threads_at_once():
    """Each has memory of its own."""
    inputs = _inputs((2, 12, 4, 1, 512, 64), torch.float32)
    expected, run = _attend(*inputs), compiled(_attend, fullgraph=True)
    with torch.no_grad():
        run(*inputs)
    wrong = []

    def work():
        with torch.no_grad():
            wrong.extend(
                1 for _ in range(50) if not torch.allclose(run(*inputs), expected, atol=1e-5)
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
