"""Kernels of torch in Python inside a program: eager's numbers, in whatever thread and mode."""

import dataclasses
import re
import signal
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import xla_dynamo
from tests.comparison import compare_with_exact
from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.kernels import attention, grouped_products
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.lowerings.builders.specifications import Specification
from xla_dynamo.lowerings.target import ONEDNN_PLANS, TORCH_PLANS
from xla_dynamo.programs import targets
from xla_dynamo.runtime.cpu import foreign_calls, torch_shares
from xla_dynamo.runtime.cpu.foreign_calls import TARGET

# The dtypes of attention and of its mask; it is not causal, and has torch's scale.
FLOATS = (torch.float32, torch.float32, False, None)

pytestmark = pytest.mark.skipif(
    "torch" not in libraries_of("cpu"), reason="torch's build here has other threads"
)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """However small the attention is, and without plans (`tests/test_planned_attention.py`)."""
    without = libraries_of("cpu") - {ONEDNN_PLANS, TORCH_PLANS}
    monkeypatch.setattr(targets, "libraries_of", lambda name: without)
    monkeypatch.setattr(attention, "FEWEST_IN_ATTENTION", 1)


def projected(batch, heads, length, size, dtype=torch.float32):
    """As linear layers leave queries: the heads behind the lengths."""
    x = torch.randn(batch, length, heads, size, dtype=dtype)
    return x.transpose(1, 2).detach().requires_grad_()


CASES = {
    "plain": ((2, 3, 5, 8), (2, 3, 5, 8), {}),
    "one head, one image": ((1, 1, 7, 8), (1, 1, 9, 8), {}),
    "many heads": ((1, 13, 4, 8), (1, 13, 4, 8), {}),
    "causal": ((2, 3, 9, 8), (2, 3, 9, 8), {"is_causal": True}),
    "causal, more keys": ((2, 3, 4, 8), (2, 3, 9, 8), {"is_causal": True}),
    "a scale": ((2, 3, 5, 8), (2, 3, 6, 8), {"scale": 0.3}),
    "odd sizes": ((3, 5, 33, 7), (3, 5, 65, 7), {}),
    "grouped queries": ((2, 6, 5, 8), (2, 2, 7, 8), {"enable_gqa": True}),
    "grouped queries, one image": ((1, 6, 5, 8), (1, 3, 7, 8), {"enable_gqa": True}),
    "one key for all queries": ((3, 6, 5, 8), (3, 1, 7, 8), {"enable_gqa": True}),
}
MASKS = {
    "of keys": lambda q, k: torch.rand(q[0], 1, 1, k[2]) > 0.3,
    "of queries and keys": lambda q, k: torch.rand(q[2], k[2]) > 0.3,
    "causal": lambda q, k: torch.ones(q[2], k[2]).tril(1).bool(),
    "added": lambda q, k: torch.randn(1, q[1], q[2], k[2]),
    "added, expanded": lambda q, k: torch.randn(q[0], 1, q[2], k[2]).expand(*q[:3], k[2]),
    "nothing for some": lambda q, k: torch.arange(q[2])[:, None] > torch.zeros(k[2]),
}


def assert_attends_as_eager(shape, keys, settings, dtype=torch.float32, mask=None, **tolerance):
    query = projected(*shape, dtype)
    inputs = (query, projected(*keys, dtype), projected(*keys, dtype))

    def attend(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **settings) * 2

    run = compiled(attend, dynamic=False)
    assert_matches_eager(run, *inputs, tangents=[None])  # the forward, whatever the tolerance
    tangent = torch.randn(shape, dtype=dtype)
    assert_matches_eager(run, *inputs, tangents=[tangent], **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_attention(case, dtype):
    # Gradients of several heads are summed in bfloat16 by torch's kernel, in another order.
    summed = {"rtol": 2e-2, "atol": 1e-2} if "quer" in case and dtype is torch.bfloat16 else {}
    assert_attends_as_eager(*CASES[case], dtype, **summed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, dtype):
    shape, keys = (2, 3, 5, 8), (2, 3, 7, 8)
    made = MASKS[mask](shape, keys)
    assert_attends_as_eager(
        shape, keys, {}, dtype, made.to(dtype) if made.is_floating_point() else made
    )


def test_other_layouts():
    query, key, value = torch.randn(3, 2, 3, 6, 8).unbind()

    def attend(query, key, value):
        return F.scaled_dot_product_attention(query.exp(), key.mT.contiguous().mT, value[..., :3])

    assert_matches_eager(compiled(attend, dynamic=False), query, key, value)


@pytest.mark.parametrize("trains", [False, True])
def test_heads_are_not_turned(trains):
    linear = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(4)).requires_grad_(trains)

    def attend(x):
        query, key, value = (f(x).view(2, 5, 3, 8).transpose(1, 2) for f in linear[:3])
        heads = F.scaled_dot_product_attention(query, key, value)
        return linear[3](heads.transpose(1, 2).reshape(2, 5, 24))

    for built in xla_dynamo.explain(attend)(torch.randn(2, 5, 24)).executables:
        assert "xla_dynamo.call" in built.hlo
        turned = re.findall(r"= f32\[[\d,]{5,}\]\S+ (?:copy|transpose)\(", built.hlo)
        assert not turned, turned


def test_numbers_that_are_none():
    query, key, value = torch.randn(3, 2, 3, 6, 8).unbind()
    query[0, 0, 0, 0], key[1, 1, 2, 2], value[0, 2, 0, 0] = torch.nan, torch.inf, torch.nan
    f = F.scaled_dot_product_attention
    assert_matches_eager(compiled(f, dynamic=False), query, key, value, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("ends", [[3, 3, 8, 11], [0, 0, 0, 11], [11, 11, 11, 11], [2, 5, 6, 9]])
def test_products_of_groups(ends, turned, dtype, monkeypatch):
    import transformers.integrations.moe  # registers the operator

    assert transformers.integrations.moe
    monkeypatch.setattr(grouped_products, "FEWEST_IN_GROUPS", 1)
    x = torch.randn(11, 6, dtype=dtype, requires_grad=True)
    weight = torch.randn(4, 5, 6, dtype=dtype) if turned else torch.randn(4, 6, 5, dtype=dtype)
    weight.requires_grad_()
    offs = torch.tensor(ends, dtype=torch.int32 if turned else torch.int64)

    def products(x, weight):
        matrices = weight.transpose(1, 2) if turned else weight
        return torch.ops.transformers.grouped_mm_fallback(x, matrices, offs)

    assert_matches_eager(compiled(products, dynamic=False), x, weight)
    assert calls_in(products, x, weight) == 1


def calls_in(function, *args, **options):
    report = xla_dynamo.explain(function, options=options)(*args)
    return sum(built.stablehlo.count(TARGET) for built in report.executables)


UNMASKED = [(case, None) for case in CASES]
MASKED = [(c, m) for c in CASES for m in MASKS if "is_causal" not in CASES[c][2]]


@pytest.mark.every(4)
@pytest.mark.parametrize(("case", "mask"), UNMASKED + MASKED)
def test_few_keys_in_bfloat16_are_left_to_xla(case, mask):
    query, keys, settings = CASES[case]
    torch.manual_seed(0)
    inputs = [projected(*s, torch.bfloat16).detach() for s in (query, keys, keys)]
    shown = None if mask is None else MASKS[mask](query, keys)
    if shown is not None and shown.is_floating_point():
        shown = shown.bfloat16()

    def attend(*inputs):
        same = inputs[0].dtype if shown is not None and shown.is_floating_point() else torch.bool
        seen = None if shown is None else shown.to(same)
        return F.scaled_dot_product_attention(*inputs, attn_mask=seen, **settings)

    exact, expected = attend(*(x.double() for x in inputs)), attend(*inputs)
    if "onednn_bfloat16" in libraries_of("cpu"):
        assert calls_in(attend, *inputs) == 0
    compare_with_exact(exact, expected, compiled(attend, dynamic=False)(*inputs))


def test_many_keys_in_bfloat16_are_torchs():
    inputs = torch.randn(3, 1, 2, 300, 8, dtype=torch.bfloat16).unbind()
    assert calls_in(F.scaled_dot_product_attention, *inputs) == 1


def test_what_is_called(monkeypatch):
    inputs = torch.randn(3, 2, 3, 6, 8).unbind()
    assert calls_in(F.scaled_dot_product_attention, *inputs) == 1
    assert calls_in(F.scaled_dot_product_attention, *inputs, libraries=["onednn"]) == 0
    doubles = [x.double() for x in inputs]
    assert calls_in(F.scaled_dot_product_attention, *doubles) == 0
    monkeypatch.undo()
    assert calls_in(F.scaled_dot_product_attention, *inputs) == 0  # too small


def test_an_expanded_mask_is_not_written_out():
    mask = torch.randn(2, 1, 1, 64)
    inputs = torch.randn(3, 2, 3, 64, 8).unbind()

    def attend(*inputs):
        return F.scaled_dot_product_attention(*inputs, attn_mask=mask.expand(2, 3, 64, 64))

    (built,) = xla_dynamo.explain(attend)(*inputs).executables
    (call,) = (line for line in built.stablehlo.splitlines() if TARGET in line)
    assert "tensor<2x1x1x64xf32>" in call


def test_the_number_of_threads_stays():
    inputs = torch.randn(3, 2, 3, 6, 8).unbind()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        compiled(F.scaled_dot_product_attention, dynamic=False)(*inputs)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def assert_right_in_other_modes():
    inputs = torch.randn(3, 2, 3, 6, 8).unbind()
    # While torch counts operations, Dynamo compiles nothing: an error with fullgraph.
    attend = compiled(F.scaled_dot_product_attention, dynamic=False, fullgraph=False)
    expected = F.scaled_dot_product_attention(*inputs)
    with torch.inference_mode():
        torch.testing.assert_close(attend(*inputs), expected)
    with FlopCounterMode(display=False):
        torch.testing.assert_close(attend(*inputs), expected)
    with torch.device("meta"):
        torch.testing.assert_close(attend(*inputs), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert_matches_eager(attend, *inputs, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(attend(*inputs), expected)


def test_in_other_modes():
    assert_right_in_other_modes()


def test_several_threads_at_once():
    inputs = torch.randn(3, 2, 8, 40, 8).unbind()
    attend = compiled(F.scaled_dot_product_attention, dynamic=False)
    expected = F.scaled_dot_product_attention(*inputs)
    attend(*inputs)
    right = []

    def call():
        right.extend(torch.allclose(attend(*inputs), expected, atol=1e-6) for _ in range(100))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(right) == 800
    assert all(right)


def test_several_at_once_in_one_program():
    def attend(*inputs):
        scaled = (F.scaled_dot_product_attention(*(x * n for x in inputs)) for n in range(1, 9))
        return torch.stack([*scaled])

    inputs = torch.randn(3, 2, 8, 40, 8).unbind()
    run, expected = compiled(attend, dynamic=False), attend(*inputs)
    for _ in range(50):
        torch.testing.assert_close(run(*inputs), expected)


def test_errors_come_out(monkeypatch):
    inputs = torch.randn(3, 2, 3, 6, 8).unbind()
    attend = compiled(F.scaled_dot_product_attention, dynamic=False)
    expected = attend(*inputs)

    def fail(*_):
        raise RuntimeError("no more scores")

    with monkeypatch.context() as patch:
        patch.setattr(attention.Attention, "run", fail)
        with pytest.raises(xla_dynamo.ExecutionError, match="RuntimeError: no more scores"):
            attend(*inputs)
    assert not foreign_calls._jobs
    torch.testing.assert_close(attend(*inputs), expected)


@pytest.mark.parametrize(
    "others", [{"dtype": torch.float64}, {"dtype": torch.bfloat16}, {"query": (2, 3, 600, 8)}]
)
def test_what_reads_other_memory_than_the_call_has_is_an_error(others, monkeypatch):
    inputs = torch.randn(3, 2, 3, 6, 8).unbind()
    wrong = dataclasses.replace(attention.Attention(*[(2, 3, 6, 8)] * 3, None, *FLOATS), **others)
    monkeypatch.setattr(attention.Attention, "text", lambda _: Specification.text(wrong))
    with pytest.raises(xla_dynamo.ExecutionError, match="bytes where its kernel has"):
        compiled(F.scaled_dot_product_attention, dynamic=False)(*inputs)


def test_interrupts_wait_for_the_end_of_the_call(monkeypatch):
    """They reach the main thread, where it waits for others inside the handler of XLA's call."""
    inputs = torch.randn(3, 2, 3, 6, 8).unbind()
    attend = compiled(F.scaled_dot_product_attention, dynamic=False)
    expected = attend(*inputs)
    run, ended, main = attention.Attention.run, [], threading.get_ident()
    handler = signal.default_int_handler
    before = signal.signal(signal.SIGINT, handler)  # a job in the background ignores it

    def slow(self, *args):
        for _ in range(3):
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.05)
        run(self, *args)
        ended.append(threading.get_ident())

    with monkeypatch.context() as patch:
        patch.setattr(attention.Attention, "run", slow)
        with pytest.raises(KeyboardInterrupt):
            attend(*inputs)
    assert ended
    assert main not in ended
    assert not foreign_calls._jobs
    assert signal.signal(signal.SIGINT, before) is handler
    torch.testing.assert_close(attend(*inputs), expected)


def test_another_version_of_the_interface_is_not_called(monkeypatch):
    monkeypatch.setattr(foreign_calls, "_version", lambda: (0, 99))
    assert not foreign_calls.can_call.__wrapped__()


def test_the_interface_is_the_one_that_we_know():
    assert foreign_calls.can_call(), "jaxlib's xla/ffi/api/c_api.h moved: see foreign_calls"
    assert torch_shares.can_share(), "torch's libtorch_cpu.so moved: see torch_shares"
