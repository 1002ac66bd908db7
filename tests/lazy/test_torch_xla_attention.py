"""PyTorch/XLA's kernels of attention compute what formulas say, with gradients and shardings."""

import itertools

import pytest
import torch

from tests.spmd.sharding import WIDE
from xla_dynamo import spmd
from xla_dynamo.torch_xla.kernels import flash_attention as flash
from xla_dynamo.torch_xla.kernels import ragged_paged_attention as ragged
from xla_dynamo.torch_xla.kernels.paged_attention import multi_queries_paged_attention
from xla_dynamo.torch_xla.kernels.splash_attention import (
    SplashAttention,
    SplashAttentionConfig,
    splash_attention,
)

WITHIN = {torch.float32: 1e-5, torch.bfloat16: 0.05}


def attention(q, k, v, *, seen=None, scale=1.0, bias=None, cap=None):
    """Attention in float64, by its formula; masked scores are as low as a kernel's."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, flash.DEFAULT_MASK_VALUE)
    return scores.softmax(-1) @ v


def check(expected, actual, inputs, given, within):
    """Values, dtype, and the gradients of inputs, which are tensors of the CPU and the device."""
    assert actual.dtype == given[0].dtype
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=within, atol=within)
    wanted = torch.autograd.grad((expected**2).sum(), inputs, retain_graph=True)
    found = torch.autograd.grad((actual**2).sum(), given)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(
            other.cpu().double(), one.double(), rtol=10 * within, atol=10 * within
        )


def made(*shapes, dtype=torch.float32):
    """Tensors of these shapes that ask for gradients, on the CPU and on the device."""
    here = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    return here, [x.detach().to("xla").requires_grad_() for x in here]


def seen_by(queries, keys, causal, ids=None):
    seen = torch.ones(queries, keys, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    return seen if ids is None else seen & (ids[0][:, None, :, None] == ids[1][:, None, None, :])


def on_device(*tensors):
    return [None if x is None else x.to("xla") for x in tensors]


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(("queries", "keys"), [(17, 17), (9, 21)])
@pytest.mark.parametrize(
    ("causal", "with_ids", "with_bias"),
    [(True, False, False), (False, True, False), (True, True, True), (True, False, True)],
)
def test_flash_attention(dtype, queries, keys, causal, with_ids, with_bias):
    ids = [torch.randint(3, (2, n)) for n in (queries, keys)] if with_ids else None
    if ids:
        ids[0][0, 0] = 7  # sees nothing
    shapes = [(2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8)]
    here, there = made(*shapes, *([(2, 3, queries, keys)] if with_bias else []), dtype=dtype)
    seen = seen_by(queries, keys, causal, ids)
    expected = attention(*here[:3], seen=seen, scale=0.3, bias=here[3] if with_bias else None)
    bias = there[3] if with_bias else None
    actual = flash.flash_attention(
        *there[:3], causal, *on_device(*(ids or (None, None))), 0.3, ab=bias
    )
    check(expected, actual, here, there, WITHIN[dtype])


def test_flash_attention_in_a_compiled_function_and_as_an_operator():
    here, there = made(*[(2, 3, 5, 8)] * 3)
    expected = attention(*here, seen=seen_by(5, 5, True))
    for function in (torch.ops.xla.flash_attention, flash.FlashAttention.apply):
        check(expected, function(*there, True), here, there, 1e-5)
        found = torch.compile(function, backend="openxla", fullgraph=True)
        check(expected, found(*there, True), here, there, 1e-5)
        check(expected, found(*here, True), here, here, 1e-5)
    more = [x[None] for x in there]
    torch.testing.assert_close(
        flash.flash_attention(*more, True)[0].cpu().double(), expected, rtol=1e-5, atol=1e-5
    )


def test_flash_attention_is_sharded():
    here, there = made(*[(4, 4, 6, 8)] * 3)
    expected = attention(*here, seen=seen_by(6, 6, True))
    spec = ("data", "model", None, None)
    actual = flash.flash_attention(*there, True, partition_spec=spec, mesh=WIDE)
    axes = (("data",), ("model",), (), ())
    assert spmd.sharding_of(actual).axes == axes
    check(expected, actual, here, there, 1e-5)
    with pytest.raises(ValueError, match="give it a mesh"):
        flash.flash_attention(*there, partition_spec=spec)


def test_flash_attention_says_what_does_not_fit():
    x, ids = torch.ones(1, 2, 3, 4), torch.ones(1, 3)
    with pytest.raises(ValueError, match="takes q"):
        flash.flash_attention(x, x[:, :1], x[:, :1])
    with pytest.raises(ValueError, match="or none"):
        flash.flash_attention(x, x, x, False, ids)


@pytest.mark.every(2)
@pytest.mark.parametrize(("sizes", "with_ids"), [((130, 9), False), ((9, 130), True)])
def test_the_kernel_of_jax_for_tpu_takes_any_sizes(sizes, with_ids, monkeypatch):
    """Its blocks and padding; here it is interpreted."""
    monkeypatch.setattr(flash, "runs_on_tpu", lambda device: True)
    queries, keys = sizes
    here, there = made((1, 2, queries, 8), (1, 2, keys, 8), (1, 2, keys, 8))
    ids = [torch.arange(n)[None] % 2 for n in sizes] if with_ids else None
    expected = attention(*here, seen=seen_by(*sizes, True, ids), scale=0.5)
    actual = flash.flash_attention(*there, True, *on_device(*(ids or (None, None))), 0.5)
    check(expected, actual, here, there, 1e-4)


@pytest.mark.parametrize(
    ("segments", "causal", "window", "cap"),
    [(1, True, None, None), (4, False, None, None), (1, True, 3, None), (4, True, 2, 3.0)],
)
def test_splash_attention(segments, causal, window, cap):
    config = SplashAttentionConfig(
        attentiontype_local_sliding=window is not None, slide_window_size=window
    )
    assert SplashAttentionConfig.from_json(config.to_json()) == config
    here, there = made((2, 4, 11, 8), (2, 2, 11, 8), (2, 2, 11, 8))
    ids = None if segments == 1 else (torch.arange(11) % segments).expand(2, -1)
    seen = seen_by(11, 11, causal, None if ids is None else (ids, ids))
    if window is not None:
        seen = seen & ((torch.arange(11)[:, None] - torch.arange(11)).abs() <= window)
    expected = attention(*here, seen=seen, cap=cap)
    given = (*there, config.to_json(), *on_device(ids), causal, cap)
    check(expected, SplashAttention.apply(*given), here, there, 1e-5)
    found = torch.compile(splash_attention, backend="openxla", fullgraph=True)
    check(expected, found(*given), here, there, 1e-5)


def test_splash_attention_is_sharded_over_the_mesh_of_its_configuration():
    here, there = made(*[(4, 4, 6, 8)] * 3)
    spec = ("data", "model", None, None)
    config = SplashAttentionConfig(
        mesh=str(WIDE), qkv_partition_spec=spec, segment_ids_partition_spec=("data", None)
    )
    ids = torch.zeros(4, 6)
    actual = splash_attention(*there, config.to_json(), ids.to("xla"))
    assert spmd.sharding_of(actual).axes == (("data",), ("model",), (), ())
    check(attention(*here, seen=seen_by(6, 6, True)), actual, here, there, 1e-5)
    with pytest.raises(ValueError, match="slide_window_size"):
        splash_attention(*there, SplashAttentionConfig(attentiontype_local_sliding=True).to_json())


# --- pages ---------------------------------------------------------------------------------------

LENGTHS = (13, 5, 0)
PAGES = ((3, 0, 9, 11), (1, 2, 7, 7), (7, 7, 7, 7))  # 7 holds nothing


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(("queries", "cap"), [(1, None), (4, None), (4, 2.0)])
def test_attention_to_pages(dtype, queries, cap):
    q = torch.randn(3, queries, 4, 8, dtype=dtype)
    k, v = (torch.randn(2, 12, 4, 8, dtype=dtype) for _ in range(2))
    k[:, 7] = v[:, 7] = torch.nan
    counts = [min(queries, n) for n in LENGTHS]
    expected = torch.zeros(q.shape, dtype=torch.float64)
    for i, (length, count) in enumerate(zip(LENGTHS, counts, strict=True)):
        if length:
            here = [x[:, list(PAGES[i])].reshape(2, -1, 8)[:, :length] for x in (k, v)]
            seen = torch.ones(queries, length, dtype=torch.bool).tril(length - count)
            made = attention(q[i].transpose(0, 1), *here, seen=seen, cap=cap)
            expected[i] = made.transpose(0, 1)
    numbers = [torch.tensor(x, dtype=torch.int32) for x in (LENGTHS, PAGES, counts)]
    given = on_device(q, k, v, *numbers)
    within = WITHIN[dtype]
    for function in (
        multi_queries_paged_attention,
        torch.compile(torch.ops.xla.multi_queries_paged_attention, backend="openxla"),
    ):
        actual = function(*given, 1, 1, True, cap)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=within, atol=within)
    if queries == 1:
        one = torch.ops.xla.paged_attention(
            given[0][:, 0], *given[1:5], 2, attn_logits_soft_cap=cap
        )
        torch.testing.assert_close(one.cpu().double(), expected[:, 0], rtol=within, atol=within)


def test_attention_to_pages_says_what_does_not_fit():
    q, pages, ints = torch.ones(2, 3, 4), torch.ones(2, 5, 2, 4), torch.ones(2, 2).int()
    with pytest.raises(ValueError, match="kv heads that divide"):
        torch.ops.xla.paged_attention(q, pages, pages, ints[0], ints, 1)
    with pytest.raises(ValueError, match="megacore_mode"):
        torch.ops.xla.paged_attention(q[:, :2], pages, pages, ints[0], ints, 1, "x")
    with pytest.raises(ValueError, match="page_indices"):
        torch.ops.xla.paged_attention(q[:, :2], pages, pages, ints[0], ints[:1], 1)
    with pytest.raises(ValueError, match=r"2 \* kv heads"):
        ragged.ragged_paged_attention(q, pages[:, :, :1], ints[0], ints, ints[0], ints[0])


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("dtype", "cache", "window", "cap", "page"),
    [
        (torch.float32, torch.float32, None, None, 8),
        (torch.bfloat16, torch.bfloat16, 5, None, 16),
        (torch.float32, torch.float32, 70, 2.0, 300),
        (torch.float32, torch.float8_e4m3fn, None, 3.0, 4),
    ],
)
def test_ragged_attention_to_pages(dtype, cache, window, cap, page):
    lengths, ends = [60, 1, 33, 0, 0], [0, 37, 38, 55, 0, 0]
    q = torch.randn(70, 4, 8, dtype=dtype)
    count = sum(-(-n // page) for n in lengths)
    pages = torch.randn(count + 1, page, 4, 8).to(cache)
    pages.view(torch.uint8)[-1] = 255  # NaN in each dtype
    indices = torch.full((5, -(-60 // page) + 1), count, dtype=torch.int32)
    order, scale = iter(torch.randperm(count).tolist()), cache is torch.float8_e4m3fn
    scales = {"k_scale": 0.5, "v_scale": 2.0} if scale else {}
    expected = []
    for i, (length, (start, end)) in enumerate(
        zip(lengths[:3], itertools.pairwise(ends[:4]), strict=True)
    ):
        used = list(itertools.islice(order, -(-length // page)))
        indices[i, : len(used)] = torch.tensor(used)
        found = pages[used].flatten(0, 1)[:length].double().transpose(0, 1)
        k, v = found[0::2], found[1::2]
        k, v = k * scales.get("k_scale", 1), v * scales.get("v_scale", 1)
        own = torch.arange(end - start)[:, None] + length - (end - start)
        key = torch.arange(length)
        seen = (key <= own) & (key > own - (window or 1000))
        found = attention(q[start:end].transpose(0, 1), k, v, seen=seen, scale=0.3, cap=cap)
        expected.append(found.transpose(0, 1))
    numbers = [torch.tensor(x, dtype=torch.int32) for x in (lengths, ends, [3])]
    given = on_device(q, pages, numbers[0], indices, *numbers[1:])
    how = {"sm_scale": 0.3, "sliding_window": window, "soft_cap": cap, **scales}
    compiled = torch.compile(ragged.ragged_paged_attention, backend="openxla", fullgraph=True)
    for function in (torch.ops.xla.ragged_paged_attention, compiled):
        actual = function(*given, **how).cpu()
        assert actual.dtype == dtype
        torch.testing.assert_close(
            actual[:55].double(), torch.cat(expected), rtol=WITHIN[dtype], atol=WITHIN[dtype]
        )
        assert (actual[55:] == 0).all()
    assert ragged.ragged_paged_attention(*given, **how, use_kernel=False).shape[0] == 55
