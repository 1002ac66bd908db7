"""Dynamic sizes: what makes them so, what they may be, and when something is traced or compiled.

Cold: nothing is cached on disk, and Dynamo starts anew in each test.
"""

import concurrent.futures

import pytest
import torch

from tests.comparison import compare
from tests.compiling import assert_matches_eager, compiled, compiled_anew, compiled_whole, leaf


def test_mark_dynamic(traces, executables):
    def f(x):
        return (x @ x.mT).softmax(-1)

    run = compiled_whole(f, buckets="exact")
    for n in (5, 6, 7):
        x = torch.randn(2, n, 4)
        torch._dynamo.mark_dynamic(x, 1)
        assert_matches_eager(run, x)
    assert traces() == 1
    assert executables() == 3


def test_mark_dynamic_of_a_size_that_is_fixed_is_torchs_error():
    run = compiled_whole(lambda x: x.view(2, 3))
    x = torch.randn(6)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(Exception, match="Constraints violated"):
        run(x)


def test_automatic_dynamic(traces, executables):
    def f(x):
        return x.cumsum(0) * x.shape[0]

    run = compiled_whole(f, buckets="exact")
    for n in (3, 4, 5, 6, 4, 3):
        x = torch.randn(n, 2)
        assert_matches_eager(run, x)
    assert traces() == 2  # for 3, then for any, which is tried first from then on
    assert executables() == 5


def test_sizes_0_and_1_are_traced_by_themselves(traces, executables):
    def f(x):
        return x.sum(0) + x.shape[0]

    run = compiled_whole(f, dynamic=True)
    for n in (4, 1, 0, 5, 1, 0):
        x = torch.randn(n, 3)
        assert_matches_eager(run, x)
    assert traces() == 3
    assert executables() == 4


def test_backward_at_many_sizes(traces, executables):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    run = compiled_whole(model, dynamic=True, buckets="exact")
    for _ in range(2):
        for n in (3, 5, 7):
            x = torch.randn(n, 4, requires_grad=True)
            wanted, actual = (
                torch.autograd.grad(f(x).square().sum(), [x, *model.parameters()])
                for f in (model, run)
            )
            torch.testing.assert_close(actual, wanted)
        assert executables() == 6, "a forward and a backward for each size, once"
    assert traces() == 1


def test_strides_of_their_own():
    def f(x):
        return (x * 2).transpose(0, 1)

    run = compiled_whole(f, dynamic=True)
    for x in (torch.randn(3, 5), torch.randn(5, 3).t(), torch.randn(3, 10)[:, ::2]):
        assert_matches_eager(run, x)


def test_products_of_three_sizes():
    """Torch writes a base that two inputs are views of with one node for s0 * s1 * s2."""

    def f(x, z):
        x.mul_(2)
        return z + 1

    found = []
    for g in (f, compiled(f, dynamic=True)):
        x = torch.stack([torch.arange(24.0).view(2, 3, 4)] * 2, -1)[..., 0]
        found.append((g(x, x[1:]), x))
    torch.testing.assert_close(found[1], found[0])


def test_numbers_as_inputs(traces):
    def f(x, n, scale):
        return x[:n] * scale + n

    run = compiled_whole(f, dynamic=True)
    x = torch.randn(9)
    for n, scale in ((3, 0.5), (4, 0.5), (4, 2.5), (5, -0.0), (3, 0.5)):
        assert_matches_eager(run, x, n, scale)
    assert traces() == 1


def test_sizes_as_results():
    def f(x):
        return (x + 1, x.shape[0] * 2, x.numel())

    run = compiled_whole(f, dynamic=True)
    for n in (3, 4):
        result, twice, count = run(torch.randn(n, 5))
        assert (twice, count) == (2 * n, 5 * n)
        assert type(twice) is int
        assert result.shape == (n, 5)


def test_a_model_mutates_a_cache_of_any_size():
    def f(cache, new, place):
        cache[:, place] = new
        return cache.sum(1)

    run = compiled_whole(f, dynamic=True)
    for n, place in ((4, 1), (6, 5), (4, 3)):
        cache, new = torch.zeros(2, n), torch.randn(2)
        address = cache.data_ptr()
        assert_matches_eager(run, cache, new, place)
        assert cache.data_ptr() == address


def test_the_least_recently_used_executable_goes(executables):
    run = compiled_whole(torch.sin, dynamic=True, buckets="exact", max_executables=2)
    for n in (3, 4, 3, 5, 3):  # 5 drops 4
        run(torch.randn(n))
    assert executables() == 3
    run(torch.randn(4))
    assert executables() == 4


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.nonzero() * 2,
        lambda x: x.masked_select(x > 0).sum(),
        lambda x: x.unique().cumsum(0),
        lambda x: x[x > 0].exp() + x.sum().item(),
        lambda x: x.relu() * x.max().item(),
        lambda x: torch.repeat_interleave(x, (x > 0).long() + 1) * 2,
    ],
    ids=["nonzero", "masked_select", "unique", "mask and item", "item", "repeat_interleave"],
)
def test_sizes_and_numbers_by_value(f, traces, executables):
    """They run eagerly, at that very operator; the rest is compiled."""
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        run = compiled(f)
        for values in ([1.0, -2.0, 3.0, 3.0], [1.0, 1.0, 2.0, -1.0], [-1.0, -1.0, -3.0, -2.0]):
            x = torch.tensor(values)
            assert_matches_eager(run, x)
    assert traces() == 1
    assert executables() >= 1


def test_two_threads_want_the_same_size(executables):
    def f(x):
        return x.exp().cumsum(0)

    run = compiled_whole(f, dynamic=True, buckets="exact")
    run(torch.randn(3))
    inputs = [torch.randn(n) for n in (4, 5, 6, 4, 5, 6, 4, 5)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for x, y in zip(inputs, pool.map(run, inputs), strict=True):
            compare(f(x), y, values=True)
    assert executables() == 4


def test_operators_with_effects_at_dynamic_sizes():
    """Its check for singular matrices is an effect that AOTAutograd orders by a token."""
    run = compiled_whole(torch.linalg.inv, dynamic=True)
    for n in (2, 3):
        x = torch.eye(n) * 2
        assert_matches_eager(run, x)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_mask_over_nothing(dynamic):
    def f(boxes, scores):
        return boxes[scores > 0.5] * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = compiled(f, dynamic=dynamic)
        for n in (3, 0, 2):
            assert_matches_eager(run, torch.ones(n, 4), torch.ones(n))


def test_threads_compile_new_sizes_and_trace_gradients_at_once():
    """Lowering at a new size must not touch what another thread's trace looks at."""

    def f(x, w):
        return ((x @ w).relu() * x.shape[0]).sum(1)

    def work(first):
        for n in range(first, first + 5):
            assert_matches_eager(run, torch.randn(n, 4), leaf(4, 3))

    for _ in range(3):
        run = compiled_anew(f, dynamic=True, fallback="error")
        run(torch.randn(3, 4), leaf(4, 3))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(work, (2, 4, 5, 7)))
