"""Random numbers: repeatable, fresh at each call, and of the distributions that torch promises."""

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F

from tests.compiling import compiled

aten = torch.ops.aten

COUNT = 100_000
# Seeds are fixed, so a draw passes always or never; a wrong distribution gives far less than this.
LEAST_P = 1e-3


def drawn(f, seed=0):
    torch.manual_seed(seed)
    return compiled(f)()


def assert_distribution(sample, cdf):
    assert scipy.stats.kstest(sample.double().flatten().numpy(), cdf).pvalue > LEAST_P


def assert_frequencies(sample, probability):
    """`probability` gives that of each value from 0; what it leaves over is one more class."""
    counts = np.bincount(sample.long().flatten().numpy(), minlength=len(probability))
    rest = counts[len(probability) :].sum()
    seen = np.append(counts[: len(probability)], rest)
    expected = np.append(probability, 1 - np.sum(probability)) * sample.numel()
    possible = expected > 1e-6
    assert seen[~possible].sum() == 0
    seen, expected = seen[possible], expected[possible]
    if len(seen) == 1:
        return
    assert scipy.stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > LEAST_P


# --- keys --------------------------------------------------------------------------------------


def test_manual_seed_repeats_a_run():
    f = compiled(lambda: (torch.rand(5), torch.randn(5), torch.randint(100, (5,))))
    torch.manual_seed(7)
    first, second = f(), f()
    torch.manual_seed(7)
    for a, b in zip([*first, *second], [*f(), *f()], strict=True):
        assert torch.equal(a, b)


def test_calls_differ():
    f = compiled(lambda: torch.rand(100))
    assert not torch.equal(f(), f())


def test_draws_of_one_call_differ():
    a, b = compiled(lambda: (torch.rand(100), torch.rand(100)))()
    assert not torch.equal(a, b)


def test_seeds_differ():
    assert not torch.equal(drawn(lambda: torch.rand(100), 1), drawn(lambda: torch.rand(100), 2))


def test_draws_of_one_call_are_independent():
    a, b = drawn(lambda: (torch.randn(COUNT), torch.randn(COUNT)))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / COUNT**0.5


def test_draws_of_one_call_are_not_each_other_shifted():
    """A number of 53 bits hardly comes twice."""
    f = lambda: [torch.rand(5000, dtype=torch.float64) for _ in range(4)]  # noqa: E731
    calls = compiled(f)
    every = torch.cat([*calls(), *calls()])
    assert every.unique().numel() >= every.numel() - 1


def test_successive_seeds_are_independent():
    a, b = (drawn(lambda: torch.randn(COUNT), seed) for seed in (3, 4))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / COUNT**0.5


def test_forward_and_backward_see_one_mask():
    x = torch.ones(1000, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.3))(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


# --- uniform and integers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "digits"),
    [(torch.float16, 11), (torch.bfloat16, 8), (torch.float32, 24), (torch.float64, 53)],
)
def test_rand_has_the_granularity_of_its_type(dtype, digits):
    sample = drawn(lambda: torch.rand(COUNT, dtype=dtype)).double()
    assert sample.min() >= 0
    assert sample.max() < 1
    steps = sample * 2**digits
    assert torch.equal(steps, steps.round())
    assert (steps % 2 == 1).double().mean() == pytest.approx(0.5, abs=0.01)  # to the last bit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rand(dtype):
    assert_distribution(drawn(lambda: torch.rand(COUNT, dtype=dtype)), "uniform")
    assert_distribution(drawn(lambda: torch.rand_like(torch.zeros(10, COUNT // 10))), "uniform")


def test_complex_rand():
    sample = drawn(lambda: torch.rand(COUNT, dtype=torch.complex64))
    assert_distribution(sample.real, "uniform")
    assert_distribution(sample.imag, "uniform")


def test_uniform():
    sample = drawn(lambda: torch.zeros(COUNT).uniform_(-2, 5))
    assert_distribution(sample, scipy.stats.uniform(-2, 7).cdf)


def test_randint():
    assert_frequencies(drawn(lambda: torch.randint(7, (COUNT,))), np.full(7, 1 / 7))
    assert_frequencies(drawn(lambda: torch.randint(-3, 2, (COUNT,))) + 3, np.full(5, 1 / 5))
    like = drawn(lambda: torch.randint_like(torch.zeros(COUNT), 2, 5))
    assert_frequencies(like - 2, np.full(3, 1 / 3))


@pytest.mark.parametrize("bits", [27, 28, 40, 62])
def test_randint_of_a_wide_range(bits):
    sample = drawn(lambda: torch.randint(1 << bits, (COUNT,)))
    assert_distribution(sample.double() / 2**bits, "uniform")
    assert sample.min() >= 0
    assert sample.max() < 1 << bits


def test_randint_of_the_widest_range():
    info = torch.iinfo(torch.int64)
    sample = drawn(lambda: torch.randint(info.min, info.max, (COUNT,)))
    assert_distribution(sample.double() / 2.0**64 + 0.5, "uniform")


@pytest.mark.parametrize(
    ("dtype", "top"),
    [(torch.float32, 2**24), (torch.int64, 2**63), (torch.uint8, 2**8), (torch.bool, 2)],
)
def test_random(dtype, top):
    # Dynamo does not trace the method `random_` itself.
    x = torch.zeros(COUNT, dtype=dtype)
    sample = drawn(lambda: aten.random(x)).double()
    assert sample.min() >= 0
    assert sample.max() <= top
    middle = (top - 1) / 2 / top
    assert sample.mean() / top == pytest.approx(middle, abs=0.01)


def test_random_between():
    x = torch.zeros(COUNT)
    assert_frequencies(drawn(lambda: aten.random(x, 4)), np.full(4, 1 / 4))
    assert_frequencies(drawn(lambda: aten.random(x, 2, 5)) - 2, np.full(3, 1 / 3))
    assert drawn(lambda: aten.random(x, 3, None)).min() >= 3


@pytest.mark.parametrize("n", [0, 1, 2, 1000, COUNT])
def test_randperm_is_a_permutation(n):
    sample = drawn(lambda: torch.randperm(n))
    assert sample.dtype == torch.int64
    assert torch.equal(sample.sort().values, torch.arange(n))


def test_every_permutation_is_as_likely():
    f = compiled(lambda: torch.stack([torch.randperm(3) for _ in range(50)]))
    torch.manual_seed(0)
    rows = torch.cat([f() for _ in range(100)])
    names = rows[:, 0] * 9 + rows[:, 1] * 3 + rows[:, 2]
    counts = names.unique(return_counts=True)[1]
    assert len(counts) == 6
    assert scipy.stats.chisquare(counts).pvalue > LEAST_P


# --- normal ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_randn(dtype):
    sample = drawn(lambda: torch.randn(COUNT, dtype=dtype))
    assert_distribution(sample, "norm")
    assert sample.isfinite().all()
    assert_distribution(drawn(lambda: torch.randn_like(torch.zeros(COUNT, dtype=dtype))), "norm")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_randn_in_half_types(dtype):
    sample = drawn(lambda: torch.randn(COUNT, dtype=dtype)).float()
    assert sample.mean() == pytest.approx(0, abs=0.02)
    assert sample.std() == pytest.approx(1, abs=0.02)


def test_complex_randn():
    sample = drawn(lambda: torch.randn(COUNT, dtype=torch.complex64))
    for part in (sample.real, sample.imag):
        assert_distribution(part, scipy.stats.norm(0, 0.5**0.5).cdf)
    assert abs(np.corrcoef(sample.real, sample.imag)[0, 1]) < 4 / COUNT**0.5


def test_normal():
    norm = scipy.stats.norm(3, 2).cdf
    mean, std = torch.full((COUNT,), 3.0), torch.full((COUNT,), 2.0)
    assert_distribution(drawn(lambda: torch.normal(3.0, 2.0, (COUNT,))), norm)
    assert_distribution(drawn(lambda: torch.normal(mean, 2.0)), norm)
    assert_distribution(drawn(lambda: torch.normal(3.0, std)), norm)
    assert_distribution(drawn(lambda: torch.normal(mean, std)), norm)
    assert_distribution(drawn(lambda: torch.zeros(COUNT).normal_(3, 2)), norm)


def test_log_normal():
    sample = drawn(lambda: torch.zeros(COUNT).log_normal_(0.5, 0.25))
    assert_distribution(sample.log(), scipy.stats.norm(0.5, 0.25).cdf)


# --- Bernoulli and dropout ---------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli(p):
    probabilities = torch.full((COUNT,), p)
    for f in (
        lambda: torch.bernoulli(probabilities),
        lambda: torch.zeros(COUNT).bernoulli_(p),
        lambda: torch.zeros(COUNT).bernoulli_(probabilities),
    ):
        assert_frequencies(drawn(f), np.array([1 - p, p]))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.75, 1.0])
def test_dropout_scales_what_it_keeps(p):
    sample = drawn(lambda: F.dropout(torch.full((COUNT,), 2.0), p))
    assert_frequencies(sample > 0, np.array([p, 1 - p]))
    if p < 1:
        assert torch.allclose(sample[sample > 0], torch.tensor(2 / (1 - p)))


def test_dropout_is_nothing_in_inference():
    x = torch.randn(10)
    assert torch.equal(compiled(lambda x: F.dropout(x, 0.5, training=False))(x), x)


def test_rrelu():
    x = torch.cat([-torch.ones(COUNT), torch.ones(10)])
    sample = drawn(lambda: F.rrelu(x, 0.1, 0.4, training=True))
    assert_distribution(-sample[:COUNT], scipy.stats.uniform(0.1, 0.3).cdf)
    assert torch.equal(sample[COUNT:], torch.ones(10))


# --- other distributions -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponential(dtype):
    sample = drawn(lambda: torch.zeros(COUNT, dtype=dtype).exponential_(2))
    assert_distribution(sample, scipy.stats.expon(scale=0.5).cdf)
    assert sample.min() > 0
    assert sample.isfinite().all()


def test_cauchy():
    sample = drawn(lambda: torch.zeros(COUNT).cauchy_(1, 3))
    assert_distribution(sample, scipy.stats.cauchy(1, 3).cdf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_geometric(dtype):
    sample = drawn(lambda: torch.zeros(COUNT, dtype=dtype).geometric_(0.4))
    assert_frequencies(sample, scipy.stats.geom(0.4).pmf(range(12)))


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial_of_one(replacement):
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    rows = weights.expand(COUNT, 6)
    sample = drawn(lambda: torch.multinomial(rows, 1, replacement=replacement))
    assert sample.shape == (COUNT, 1)
    assert_frequencies(sample, (weights / 8).numpy())


def test_multinomial_with_replacement():
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0])
    sample = drawn(lambda: torch.multinomial(weights, COUNT, replacement=True))
    assert_frequencies(sample, (weights / 8).numpy())


def test_multinomial_without_replacement():
    weights = torch.tensor([1.0, 2.0, 5.0])
    sample = drawn(lambda: torch.multinomial(weights.expand(COUNT, 3), 3))
    assert torch.equal(sample.sort(1).values, torch.arange(3).expand(COUNT, 3))
    assert_frequencies(sample[:, 0], (weights / 8).numpy())
    after_two = sample[sample[:, 0] == 2, 1]
    assert_frequencies(after_two, np.array([1 / 3, 2 / 3]))


@pytest.mark.parametrize("rate", [0.0, 0.5, 20.0])
def test_poisson(rate):
    rates = torch.full((COUNT,), rate)
    sample = drawn(lambda: torch.poisson(rates))
    assert_frequencies(sample, scipy.stats.poisson(rate).pmf(range(30)))


def test_binomial():
    count, p = torch.full((COUNT,), 10.0), torch.full((COUNT,), 0.3)
    sample = drawn(lambda: torch.binomial(count, p))
    assert_frequencies(sample, scipy.stats.binom(10, 0.3).pmf(range(9)))


@pytest.mark.parametrize("shape", [0.5, 4.0])
def test_gamma(shape):
    shapes = torch.full((COUNT,), shape)
    sample = drawn(lambda: torch._standard_gamma(shapes))
    assert_distribution(sample, scipy.stats.gamma(shape).cdf)


def test_dirichlet():
    concentration = torch.tensor([1.0, 2.0, 3.0]).expand(COUNT, 3)
    sample = drawn(lambda: torch._sample_dirichlet(concentration))
    assert torch.allclose(sample.sum(1), torch.ones(COUNT))
    assert_distribution(sample[:, 0], scipy.stats.beta(1, 5).cdf)
