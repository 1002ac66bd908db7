"""Random numbers at the edges of their ranges and types, of torch.distributions, in threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as D
import torch.nn.functional as F

from tests.compiling import compiled
from tests.test_random import COUNT, assert_distribution, assert_frequencies, drawn
from xla_dynamo import UnsupportedOperator
from xla_dynamo.lowerings.rules.random.random import _below

aten = torch.ops.aten
HALVES = [torch.float16, torch.bfloat16]
_OTHERS = [torch.float16, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


# --- dropout -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "dtype"),
    [(p, torch.float32) for p in (0.0, 1e-3, 0.5, 0.999, 1.0)]
    + [(1e-3, dtype) for dtype in (torch.float64, *HALVES)],
)
def test_keep_rate(p, dtype):
    kept = drawn(lambda: F.dropout(torch.ones(COUNT, dtype=dtype), p)) > 0
    assert_frequencies(kept, np.array([p, 1 - p]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_gradient_is_the_mask(dtype):
    f = compiled(lambda x: F.dropout(x, 0.3) * torch.rand(1000, dtype=dtype))
    masks = []
    for seed in (1, 2):
        x = torch.ones(1000, dtype=dtype, requires_grad=True)
        y = f(x)
        torch.manual_seed(seed)
        y.sum().backward()
        torch.testing.assert_close(x.grad, y.detach())
        masks.append(x.grad)
    assert not torch.equal(*masks)


@pytest.mark.parametrize("network", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_dropout_between_recurrent_layers_is_refused(network):
    """Torch's decomposition leaves it out; by default Dynamo does not get there."""
    module, x = network(3, 4, 2, dropout=0.5), torch.rand(5, 2, 3)
    with torch._dynamo.config.patch(allow_rnn=True):
        with pytest.raises(Exception, match="leaves the dropout out") as raised:
            compiled(lambda x: module(x)[0])(x)
        assert isinstance(raised.value.inner_exception, UnsupportedOperator)
        torch._dynamo.reset()
        with torch.no_grad():
            module.eval()
            torch.testing.assert_close(compiled(lambda x: module(x)[0])(x), module(x)[0])


# --- ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("low", "high"), [(1, 2), (-2, -1), (-3, 0), (3, 3)])
def test_uniform_stays_below_its_end(dtype, low, high):
    x = torch.zeros(COUNT, dtype=dtype)
    sample = drawn(lambda: x.clone().uniform_(low, high)).double()
    assert sample.min() >= low
    assert sample.max() < high or low == high
    assert sample.mean() == pytest.approx((low + high) / 2, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("x", [1.0, 2.0, 3.0, 0.1, -1.0, -2.0, 7.3, 1e-30])
def test_the_number_below(dtype, x):
    end = torch.tensor(x, dtype=dtype)
    below = end if end.item() < x else torch.nextafter(end, torch.tensor(-torch.inf, dtype=dtype))
    assert _below(x, dtype) == below.item()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_random_of_integers(dtype):
    x, top = torch.zeros(COUNT, dtype=dtype), torch.iinfo(dtype).max
    whole = drawn(lambda: aten.random(x))
    assert whole.dtype == dtype
    assert whole.min() >= 0
    if top > 255:
        assert_distribution(whole.double() / top, "uniform")
    else:
        assert_frequencies(whole, np.full(top + 1, 1 / (top + 1)))
    assert_frequencies(drawn(lambda: aten.random(x, 9)), np.full(9, 1 / 9))
    if dtype.is_signed:
        assert_frequencies(drawn(lambda: aten.random(x, -5, 4)) + 5, np.full(9, 1 / 9))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, *HALVES, torch.float64])
def test_randint_of_other_dtypes(dtype):
    n = 2 if dtype is torch.bool else 7
    sample = drawn(lambda: torch.randint(n, (COUNT,), dtype=dtype))
    assert sample.dtype == dtype
    assert_frequencies(sample, np.full(n, 1 / n))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.float64])
def test_randperm_of_other_dtypes(dtype):
    sample = drawn(lambda: torch.randperm(100, dtype=dtype))
    assert torch.equal(sample.sort().values, torch.arange(100).to(dtype))


# --- half types and other parameters -----------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, *(pytest.param(t, marks=pytest.mark.slow) for t in _OTHERS)]
)
def test_distributions_in_other_dtypes(dtype):
    x = torch.zeros(COUNT, dtype=dtype)
    for draw, cdf in (
        (lambda: x.clone().exponential_(2), scipy.stats.expon(scale=0.5).cdf),
        (lambda: x.clone().cauchy_(1, 3), scipy.stats.cauchy(1, 3).cdf),
        (lambda: x.clone().log_normal_(0.5, 0.25), scipy.stats.lognorm(0.25, scale=np.e**0.5).cdf),
    ):
        # The rounding to few digits alone moves the cumulative distribution by about eps.
        statistic = scipy.stats.kstest(drawn(draw).double().numpy(), cdf).statistic
        assert statistic < torch.finfo(dtype).eps + 2 / COUNT**0.5
    assert_frequencies(
        drawn(lambda: x.clone().geometric_(0.4)), scipy.stats.geom(0.4).pmf(range(9))
    )
    third = torch.full_like(x, 0.25)
    assert_frequencies(drawn(lambda: torch.bernoulli(third)), np.array([0.75, 0.25]))
    assert_frequencies(drawn(lambda: torch.poisson(third)), scipy.stats.poisson(0.25).pmf(range(5)))


def test_normal_is_rounded_once():
    """-2 + 3 z from a rounded z would be on a grid of 3 * 2**-9, with its zero on it."""
    sample = drawn(lambda: torch.zeros(COUNT, dtype=torch.bfloat16).normal_(-2, 3))
    assert (sample == 0).sum() == 0
    assert sample.double().mean() == pytest.approx(-2, abs=0.05)
    assert sample.double().std() == pytest.approx(3, abs=0.05)


@pytest.mark.parametrize("shape", [1e-3, 0.1])
def test_gammas_are_never_zero(shape):
    """Torch's are at least the smallest normal number: their logarithms are finite."""
    shapes = torch.full((COUNT,), shape)
    assert drawn(lambda: torch._standard_gamma(shapes)).min() >= torch.finfo(torch.float32).tiny
    sample = drawn(lambda: torch._sample_dirichlet(shapes.reshape(-1, 4)))
    assert sample.min() >= torch.finfo(torch.float32).tiny
    assert sample.max() < 1
    assert sample.mean() == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize(("count", "p"), [(0, 0.3), (10, 0.0), (10, 1.0), (1, 0.5), (50, 0.9)])
def test_binomial_at_its_ends(count, p):
    counts, ps = torch.full((COUNT,), float(count)), torch.full((COUNT,), p)
    pmf = scipy.stats.binom(count, p).pmf(range(count + 1))
    assert_frequencies(drawn(lambda: torch.binomial(counts, ps)), pmf)


@pytest.mark.parametrize("rate", [9.9, 10.1, 1000.0])
def test_poisson_of_large_rates(rate):
    rates = torch.full((COUNT,), rate)
    pmf = scipy.stats.poisson(rate).pmf(range(int(rate + 4 * rate**0.5)))
    seen = drawn(lambda: torch.poisson(rates))
    low = int(rate - 3 * rate**0.5)
    pmf = np.append(pmf[:low].sum(), pmf[low:])
    assert_frequencies((seen - low + 1).clamp(min=0), pmf)


# --- torch.distributions -----------------------------------------------------------------------


FULL = torch.full
DISTRIBUTIONS = {
    "Normal": (lambda: D.Normal(torch.zeros(COUNT), 2.0).sample(), scipy.stats.norm(0, 2)),
    "Uniform": (lambda: D.Uniform(torch.zeros(COUNT), 3.0).sample(), scipy.stats.uniform(0, 3)),
    "Laplace": (lambda: D.Laplace(torch.zeros(COUNT), 1.0).sample(), scipy.stats.laplace()),
    "Gumbel": (lambda: D.Gumbel(torch.zeros(COUNT), 1.0).sample(), scipy.stats.gumbel_r()),
    "Exponential": (lambda: D.Exponential(FULL((COUNT,), 2.0)).sample(), scipy.stats.expon(0, 0.5)),
    "Gamma": (lambda: D.Gamma(FULL((COUNT,), 2.0), 3.0).sample(), scipy.stats.gamma(2, 0, 1 / 3)),
    "Beta": (lambda: D.Beta(FULL((COUNT,), 2.0), 3.0).sample(), scipy.stats.beta(2, 3)),
    "StudentT": (lambda: D.StudentT(FULL((COUNT,), 5.0)).sample(), scipy.stats.t(5)),
    "Chi2": (lambda: D.Chi2(FULL((COUNT,), 3.0)).sample(), scipy.stats.chi2(3)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_torch_distributions(name):
    draw, expected = DISTRIBUTIONS[name]
    assert_distribution(drawn(draw), expected.cdf)


def test_torch_distributions_of_whole_numbers():
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert_frequencies(drawn(lambda: D.Categorical(weights).sample((COUNT,))), weights.numpy())
    thirds = torch.full((COUNT,), 0.3)
    assert_frequencies(drawn(lambda: D.Bernoulli(thirds).sample()), np.array([0.7, 0.3]))
    pmf = scipy.stats.binom(10, 0.3).pmf(range(11))
    assert_frequencies(drawn(lambda: D.Binomial(10, thirds).sample()), pmf)


def test_gradients_through_a_sample():
    def f(mean, rate):
        return (D.Normal(mean, 2.0).rsample() * D.Gamma(rate, 3.0).rsample()).sum()

    mean, rate = (torch.full((COUNT,), v, requires_grad=True) for v in (1.0, 2.0))
    torch.manual_seed(0)
    compiled(f)(mean, rate).backward()
    assert mean.grad.mean() == pytest.approx(2 / 3, rel=0.02)  # the mean of the gamma
    assert rate.grad.mean() == pytest.approx(1 / 3, rel=0.05)  # d(rate / 3) times the normal's


# --- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rng", ["xla", "torch"])
def test_threads_do_not_share_numbers(rng):
    f = compiled(lambda: torch.rand(8), rng=rng)
    f()
    with ThreadPoolExecutor(4) as pool:
        samples = list(pool.map(lambda _: f(), range(80)))
    assert len({tuple(sample.tolist()) for sample in samples}) == 80
