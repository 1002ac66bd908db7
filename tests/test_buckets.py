"""Buckets: one executable for all sizes up to a bound, with eager's results at each.

Cold: nothing is cached on disk, and Dynamo starts anew in each test. In all tests, what stands
behind the elements of an input is NaN, or a number that is no index.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops import while_loop
from torch.utils import _pytree as pytree

import xla_dynamo
from tests.comparison import compare
from tests.compiling import compiled, compiled_whole
from tests.padding import harmful_padding
from xla_dynamo.errors import OptionError
from xla_dynamo.graphs.buckets import Bucket, variants_of
from xla_dynamo.lowerings.bounded.extents import Extent, Symbols
from xla_dynamo.options import Options

# The first, which is compiled as it is; within a bucket, at its edge, one beyond; the last two are
# of the next one.
BUCKETS = (4, 8, 16, 32, 48, 64)
SIZES = (6, 5, 7, 8, 9, 16)


@pytest.fixture(autouse=True)
def _padding():
    with harmful_padding():
        yield


def rows(n):
    return [torch.randn(n, 11)]


def batches(n):
    return [torch.randn(n + 17, n, 11)]


def check(f, make, sizes=SIZES, buckets=BUCKETS, **how):
    """Compare with eager at each size; returns the compiled function."""
    run = compiled_whole(f, dynamic=True, buckets=buckets)
    for n in sizes:
        args = make(n)
        compare(f(*args), run(*args), values=True, **how)
    return run


W = torch.randn(11, 3, generator=torch.Generator().manual_seed(0))
BOUNDED = {
    "elementwise": (lambda x: x.exp() + 1, rows),
    "softmax over the free size": (lambda x: x.softmax(0), rows),
    "means": (lambda x: (x.mean(0), x.mean(), x.var(0)), rows),
    "masked mean": (lambda x: (x * (x > 0)).sum(0) / (x > 0).sum(0).clamp(min=1), rows),
    "extrema": (lambda x: (x.amax(0), x.max(0), (x > 2).any(0), x.prod(0)), rows),
    "matmul keeps it": (lambda x: x @ W, rows),
    "matmul contracts it": (lambda x: x.T @ x, rows),
    "matmul does both": (lambda x: (x @ x.T) @ x, rows),
    "sum of what is made": (lambda x: torch.ones(x.shape[0]).sum() + x.sum(), rows),
    "positions": (lambda x: (torch.arange(x.shape[0]) + x[:, 0], x.shape[0] * x), rows),
    "the last place": (lambda x: (x[-1] * 2, x[-3:] * 2, x[0] * 2), rows),
    "a shift": (lambda x: x[1:] - x[:-1], rows),
    "two free sizes joined": (lambda x: torch.cat([x, x * 2, x[1:]]).softmax(0), rows),
    "stack": (lambda x: torch.stack([x, x + 1]).sum(1), rows),
    "triangle": (lambda x: (x @ x.T).tril().sum(1), rows),
    "padding": (lambda x: F.pad(x, (0, 0, 2, 1), value=3.0).sum(0), rows),
    "running sums": (lambda x: (x.cumsum(0), (x > 0).cumsum(0)), rows),
    "results of functions": (lambda x: (x.topk(3, 1), x.cumsum(1), x.cumprod(1), x.sort(1)), rows),
    "sizes as results": (lambda x: (x + 1, x.shape[0], x.numel()), rows),
    "a permuted result": (lambda x: (x * 2).T, rows),
    "one result twice": (lambda x: (x * 2,) * 2, rows),
    "results of one memory": (lambda x: (lambda y: (y, y[0]))(x + 1), rows),
    "a strided input": (lambda x: x.sum(0) + x, lambda n: [torch.randn(11, n).T]),
    "an input with gaps": (lambda x: x.sum(0) + x, lambda n: [torch.randn(n, 22)[:, ::2]]),
    "embedding": (lambda i: F.embedding(i, W), lambda n: [torch.randint(0, 11, (3, n))]),
    "indices into it": (
        lambda x, i: x[i],
        lambda n: [torch.randn(n, 11), torch.randint(-n, n, (3,))],
    ),
    "batch and length": (lambda x: F.gelu(x @ W).softmax(1).sum(0), batches),
    "merged and contracted": (lambda x: x.flatten(0, 1).T @ x.flatten(0, 1), batches),
    "a merged result": (lambda x: x.reshape(-1, 11).exp(), batches),
    "lengths": (
        lambda x, n: (x * (torch.arange(x.shape[1]) < n[:, None])).sum(1) / n,
        lambda n: [torch.randn(3, n), torch.tensor([n, 1, 2])],
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", BOUNDED)
def test_one_executable_for_a_bucket(name, executables):
    # Sums of other lengths are added in another order.
    check(*BOUNDED[name], atol=2e-5, rtol=2e-5)
    bounded = 3 if name in ("batch and length", "merged and contracted", "a merged result") else 2
    assert executables() == 1 + bounded


def last_places(x, window):
    """As the keys of a sliding window: a branch tells which of two sizes is the larger one."""
    length = x.shape[0]
    first = max(length - window, 0)
    taken = window if length >= window else length
    return torch.arange(taken) + first, x[first:] * 2


@pytest.mark.parametrize(
    "f", [lambda x: last_places(x, 4), lambda x: last_places(x, 20)], ids=["full", "not full"]
)
def test_the_larger_of_two_sizes(f, executables, traces):
    check(f, rows)
    assert traces() == 1
    assert executables() == 1 + 2


TRAINED = {
    "mlp": (lambda x: F.layer_norm(x @ W, (3,)).relu().square().mean(), batches),
    # The size of a head is dynamic here, and its root would be a number that is no size.
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3).exp(),
        batches,
    ),
    "views of the input": (lambda x: (x.transpose(0, 1) @ W).exp().mean(), batches),
    # Not `exp`: that of a sum over many elements magnifies the sum's own error.
    "embedding": (lambda x: (F.embedding(x.argmax(-1), W) * x[..., :1]).sum(1).tanh(), batches),
    "rows that are chosen": (lambda x: x[:, torch.tensor([1, 0, 1])].exp(), batches),
    "cross entropy": (
        lambda x: F.cross_entropy((x @ W).flatten(0, 1), x.argmax(-1).flatten() % 3),
        batches,
    ),
    "a result that is expanded": (lambda x: (x.sum(0).expand(4, -1, -1), x.mean() * 2), batches),
}


@pytest.mark.parametrize("name", TRAINED)
def test_gradients(name, executables):
    """Forward and backward in buckets; the saved tensors cross as they are in eager."""
    f, make = TRAINED[name]
    run = compiled_whole(f, dynamic=True, buckets=BUCKETS)
    for n in SIZES:
        given = [x.requires_grad_() for x in make(n)]
        twins = [x.detach().clone().requires_grad_() for x in given]
        results = pytree.tree_leaves((f(*given), run(*twins)))
        half = len(results) // 2
        weights = [torch.randn_like(r) for r in results[:half]]
        for leaves in (results[:half], results[half:]):
            torch.autograd.backward(leaves, weights)
        compare(results[:half], results[half:], values=True, atol=2e-5, rtol=2e-5)
        compare([x.grad for x in given], [x.grad for x in twins], values=True, atol=2e-5, rtol=2e-5)
    assert executables() == 2 * (1 + 3)


REFUSED = {
    "half a size": (lambda x: x * (x.shape[0] // 2), rows, "not a polynomial"),
    "turned": (lambda x: x.flip(0), rows, "reverse: it reverses a dynamic dimension"),
    "sorted": (lambda x: x.sort(0), rows, "sort: it sorts along a dynamic dimension"),
    "changed in place": (lambda x: x.mul_(2), rows, "changes in place"),
    "a table": (
        lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"),
        lambda n: [torch.randn(1, 2, n)],
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bounded_is_compiled_for_each_size(name, executables):
    f, make, reason = REFUSED[name]
    sizes = (5, 7, 8)
    run = xla_dynamo.explain(f, dynamic=True, options={"buckets": BUCKETS})
    run(*make(5))
    report = run(*make(7))
    assert reason in report.not_bucketed[0].reason
    for n in sizes:
        args = make(n)
        compare(f(*map(torch.clone, args)), run(*args).result, values=True)
    assert executables() == len(sizes)


def test_explain_names_the_operator_and_its_line():
    def f(x):
        y = x + 1
        return y.flip(0)

    run = xla_dynamo.explain(f, dynamic=True, options={"buckets": BUCKETS})
    run(*rows(5))
    report = run(*rows(6))
    (event,) = report.not_bucketed
    assert "stablehlo.reverse" in event.reason
    assert "return y.flip(0)" in event.reason
    assert "Dynamic sizes without buckets" in str(report)


def test_inputs_as_outputs_are_the_inputs(executables):
    run = compiled_whole(lambda x: (x, x.view(-1), x[0], x + 1), dynamic=True, buckets=BUCKETS)
    for n in SIZES:
        x = torch.randn(n, 11)
        same, flat, first, _ = run(x)
        for given, shape in ((same, (n, 11)), (flat, (n * 11,)), (first, (11,))):
            assert given.data_ptr() == x.data_ptr()
            assert given.shape == shape
    assert executables() == 3


def test_an_input_of_a_static_size_changes_in_place(executables):
    def f(total, x):
        return total.add_(x.sum(0)) * 1

    run = compiled_whole(f, buckets=BUCKETS)
    for n in SIZES:
        x, (total, expected) = torch.randn(n, 11), torch.ones(2, 11)
        torch._dynamo.mark_dynamic(x, 0)
        compare((f(expected, x), expected), (run(total, x), total), values=True)
    assert executables() == 2


def test_what_does_not_change_is_not_padded(executables):
    run = xla_dynamo.explain(lambda x: x @ x.mT, dynamic=True, options={"buckets": BUCKETS})
    for batch, length in ((3, 5), (3, 6), (3, 7), (2, 5)):
        report = run(torch.randn(batch, length, 11))
    sizes = [list(built.sizes.values()) for built in report.executables]
    assert sizes == [[3, 5, 11], [3, "5 to 8", 11], ["2 to 4", "5 to 8", 11]]
    assert executables() == 3


def test_a_batch_is_not_padded_before_it_changes():
    run = xla_dynamo.explain(lambda x: x.softmax(1), options={"buckets": BUCKETS})
    for batch in (3, 2):
        x = torch.randn(batch, 5, 11)
        torch._dynamo.mark_dynamic(x, (0, 1))
        report = run(x)
    sizes = [list(built.sizes.values()) for built in report.executables]
    assert sizes == [[3, "5 to 8"], ["2 to 4", "5 to 8"]]


def test_sizes_that_are_always_equal_are_one(executables):
    """As a model's caches: each has a size of its own, which no guard compares."""

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    run = compiled_whole(f, buckets=BUCKETS)
    for n, m in ((5, 5), (6, 6), (8, 8)):
        k, v = torch.randn(2, 3, n, 16), torch.randn(2, 3, m, 16)
        torch._dynamo.mark_dynamic(k, 2)
        torch._dynamo.mark_dynamic(v, 2)
        q = torch.randn(2, 3, 4, 16)
        compare(f(q, k, v), run(q, k, v), values=True)
    assert executables() == 1


def test_sizes_that_were_equal_and_are_not_any_more(executables):
    run = compiled_whole(lambda x, y: (x.softmax(0), y.sum(0)), buckets=BUCKETS)
    for n, m in ((5, 5), (6, 6), (5, 7), (7, 5), (8, 8), (5, 9)):
        x, y = torch.randn(n, 3), torch.randn(m, 3)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(y, 0)
        compare((x.softmax(0), y.sum(0)), run(x, y), values=True)
    assert executables() == 3


@pytest.mark.parametrize("f", [lambda x: x[1:].mean(), lambda x: x * (x.shape[1] * 2)])
def test_what_depends_on_two_sizes_is_not_taken_for_one(f):
    """(n - 1) * m is 52 * n - 192 at the ends of these buckets and at sizes between."""
    run = compiled_whole(f, buckets=BUCKETS)
    for n, m in ((7, 31), (5, 18), (6, 20)):
        x = torch.randn(n, m) + 3
        torch._dynamo.mark_dynamic(x, (0, 1))
        compare(f(x), run(x), values=True, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("ends", [((2, 4), (5, 8)), ((5, 8), (17, 32)), ((5, 8), (5, 8))])
def test_simple_polynomials_of_two_sizes_are_not_confused(ends):
    buckets = [Bucket(*each) for each in ends]
    variants = variants_of(buckets)
    symbols = Symbols(list(zip(*variants, strict=True)), [b.low for b in buckets])
    terms = [(), (0,), (1,), (0, 1), (0, 0)]
    for factors in itertools.product(range(-2, 3), repeat=len(terms)):
        wanted = Extent.of(dict(zip(terms, factors, strict=True)))
        found = symbols.extent(tuple(map(wanted.at, variants)))
        assert found in (None, wanted)


def test_branches_that_read_a_dynamic_size():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sum(0), lambda x: x.amax(0), (x,))

    check(f, rows, (6, 5, 7), atol=2e-5, rtol=2e-5)


def test_loops_that_read_a_dynamic_size():
    def f(x):
        return while_loop(
            lambda i, total: i < 3,
            lambda i, total: (i + 1, total + x.sum(0)),
            (torch.tensor(0), torch.zeros(11)),
        )

    check(f, rows, (6, 5, 7), atol=2e-5, rtol=2e-5)


def test_sizes_that_depend_on_values():
    """They have no value where the graph is traced."""

    def f(x, mask):
        y = x[mask]
        return y.exp().sum(0), y * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = compiled(f, fullgraph=True, dynamic=True, buckets=BUCKETS)
        for n in SIZES:
            x = torch.randn(n, 11)
            mask = torch.arange(n) % 3 != 0
            compare(f(x, mask), run(x, mask), values=True, atol=2e-5, rtol=2e-5)


def test_attention(executables):
    """The size of a head, of which torch takes the root, is not dynamic."""

    def f(q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    run = compiled_whole(f, buckets=BUCKETS)
    for n in SIZES:
        q = torch.randn(2, 3, n, 16)
        torch._dynamo.mark_dynamic(q, 2)
        compare(f(q), run(q), values=True)
    assert executables() == 2


def test_given_bounds(executables):
    check(lambda x: x.softmax(0), rows, (3, 2, 5, 24, 25, 40), buckets=[24, 40])
    assert executables() == 3
    check(lambda x: x.softmax(0) * 2, rows, (41, 42), buckets=[24, 40])
    assert executables() == 5, "beyond the largest, for each size"


def test_the_range_of_a_size_bounds_its_bucket(executables):
    explained = xla_dynamo.explain(lambda x: x.softmax(0), options={"buckets": BUCKETS})
    for n in (9, 12):
        x = torch.randn(n, 11)
        torch._dynamo.mark_dynamic(x, 0, min=3, max=12)
        report = explained(x)
    (built,) = report.executables
    assert list(built.sizes.values()) == ["9 to 12"]
    assert executables() == 1


def test_exact_sizes(executables):
    run = compiled_whole(torch.sin, dynamic=True, buckets="exact")
    for n in (5, 6):
        run(torch.randn(n))
    assert executables() == 2


@pytest.mark.parametrize("value", ["none", [], [1, 8], ["8"], 8, None])
def test_other_values_of_the_option_are_errors(value):
    with pytest.raises(OptionError, match="'auto', 'exact' or a list of sizes"):
        Options.parse({"buckets": value})


@pytest.mark.parametrize("high", [4, 5, 9, 64, 100])
def test_no_remainder_is_the_same_at_all_sizes_that_are_lowered(high):
    for low in range(2, high - 1):
        (top,), *others = variants_of([Bucket(low, high)])
        for divisor in range(2, high):
            assert {n % divisor for (n,) in others} != {top % divisor}
