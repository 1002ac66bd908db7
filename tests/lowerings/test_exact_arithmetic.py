"""What XLA would rewrite and eager would not: quotients, products with masks, sums of booleans."""

import pytest
import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

import xla_dynamo
from tests.compiling import EXACT, assert_matches_eager, compiled_anew
from xla_dynamo.lowerings.passes.guard_exponentials import guard_exponentials
from xla_dynamo.lowerings.target import Target

NUMBERS = (3.0, 7.0, 49.0, 0.1, 1e-3, 8.0, 255.0)


def assert_exact(fn, *args):
    assert_matches_eager(compiled_anew(fn), *args, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", NUMBERS)
def test_by_a_number(dtype, number):
    x = torch.arange(-1000, 1000, dtype=dtype) * number
    assert_exact(lambda x: (x / number, torch.floor(x / number), torch.div(x, number)), x)
    assert_exact(
        lambda x: (x // number, x % number, torch.div(x, number, rounding_mode="trunc")), x
    )


def test_special_values():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38])
    for number in (*NUMBERS, 0.0, -0.0, float("inf"), float("nan")):
        assert_exact(lambda x, n=number: x / n, x)


def test_what_is_not_a_number_under_a_mask():
    """0 * infinity is NaN; XLA makes a choice of a product with a converted boolean."""
    x = torch.tensor([float("inf"), float("nan"), 1.0, -float("inf"), 2.0])
    mask = torch.tensor([False, False, True, True, False])
    assert_exact(lambda x, m: (x * m, x * m.float(), (x * m).sum(), x.double() * m), x, mask)
    assert_exact(lambda x: (x * (x > 0), x.masked_fill(x > 1, 0) * (x < 1).to(x.dtype)), x)
    assert_exact(lambda x, m: torch.addcmul(x, x, m.float()), x, mask)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "known",
    [
        lambda x: x * float("nan"),
        lambda x: torch.where(x < 0, float("nan"), 1.0).to(x.dtype),
        lambda x: torch.where(torch.arange(33) < 5, float("nan"), x),
        lambda x: torch.nn.functional.pad(x, (1, 1), value=float("nan")),
        lambda x: (x + float("inf")) - float("inf"),
        lambda x: x * float("inf") * 0,
        lambda x: x * torch.full((), -1.0, dtype=x.dtype).log(),
        lambda x: torch.cat([torch.tensor([float("nan")], dtype=x.dtype), x]),
    ],
)
def test_exponentials_of_what_is_known_not_to_be_a_number(dtype, known):
    """LLVM makes anything of them: memory as it lies, or the other branch of a choice."""
    functional = torch.nn.functional
    used = (torch.exp, torch.exp2, torch.sinh, torch.cosh, torch.expm1, torch.sigmoid)
    x = torch.linspace(-2, 2, 33, dtype=dtype)
    for fn in (*used, functional.silu, functional.softplus, functional.elu):
        actual = compiled_anew(lambda x, fn=fn: fn(known(x)))(x)
        torch.testing.assert_close(actual.isnan(), fn(known(x)).isnan())


def test_exponentials_are_guarded_where_they_must_be():
    """The guard costs time: a masked attention, whose mask is infinite, goes without."""

    def text(fn):
        report = xla_dynamo.explain(fn)(torch.ones(4, 4))
        return report.executables[0].stablehlo

    def masked(x):
        return torch.softmax(x + torch.full((4, 4), -float("inf")).triu(1), -1)

    assert "compare NE" not in text(masked)
    assert "compare NE" in text(lambda x: torch.softmax(x * float("nan"), -1))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "f8E5M2"])
@pytest.mark.parametrize("numbers", ["[1.0, 2.0]", "1.0"])
def test_guards_of_exponentials_read_constants_of_any_type(dtype, numbers):
    """Arrays of the narrow types cannot be read, and count as if they held a NaN."""
    text = f"""func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
      %constant = stablehlo.constant dense<{numbers}> : tensor<2x{dtype}>
      %result = stablehlo.exponential %x : tensor<2xf32>
      return %result : tensor<2xf32> }}"""
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        guard_exponentials(module, Target("cpu"))
    unread = numbers.startswith("[") and dtype not in ("f32", "f64")
    assert ("stablehlo.select" in str(module)) == unread


def test_booleans_that_are_known_beforehand():
    """XLA folds True + True to False, where it computes the same rightly."""

    def true():
        return torch.ones(3, dtype=torch.bool)

    index = torch.tensor([0, 0, 1])
    assert_exact(
        lambda: (true() + true(), true() + True, true() * true(), true().sum(dtype=torch.bool))
    )
    assert_exact(lambda: (true().index_add(0, index, true()), true().scatter_add(0, index, true())))
    assert_exact(lambda: true().index_put((index,), true(), accumulate=True))
    assert_exact(lambda x: x.all() + x.all(), torch.empty(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_against_numbers(dtype):
    """Eager rounds the number before it compares or divides, and computes others with it whole."""
    x = torch.tensor([0.1, 1e-3, 0.3, 1.0, 2.5], dtype=dtype)
    for n in (0.1, 1e-3, 0.3):
        assert_exact(lambda x, n=n: (x == n, x != n, x < n, x <= n, x > n, x >= n), x)
        assert_exact(lambda x, n=n: (x % n, torch.fmod(x, n), n % x), x)
        assert_exact(lambda x, n=n: torch.where(x == torch.tensor(n), x, -x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_and_numbers_in_sums_and_powers(dtype):
    """Eager rounds the number here, and not in products; 0.3 - 0.3 is 0 in both."""
    # As many as whole vectors hold: eager rounds otherwise in the rest, the product by alpha too.
    x = (torch.rand(320, generator=torch.Generator().manual_seed(0)) + 0.1).to(dtype)
    for n in (0.1, 0.3, 2.7183, 1300):
        number = torch.tensor(n)
        assert_exact(lambda x, n=n: (x + n, x - n, n - x, torch.hypot(x, x + n)), x)
        assert_exact(
            lambda x, n=n: (torch.add(x, x.flip(0), alpha=n), torch.sub(x, x.flip(0), alpha=n)), x
        )
        assert_exact(lambda x, n=n: (torch.rsub(x, n), torch.rsub(x, n, alpha=3), x * n, x / n), x)
        assert_exact(lambda x, y: (x + y, y - x, x * y, torch.hypot(x, y)), x, number)
        if isinstance(n, float):
            assert_off_by_one_digit_at_most(lambda x, n=n: (x**n, n**x), x)


def assert_off_by_one_digit_at_most(fn, *args):
    eps = torch.finfo(args[0].dtype).eps
    assert_matches_eager(compiled_anew(fn), *args, rtol=eps, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("exponent", [-140, -130, -126, -3, 0, 100, 127, 130, 250])
def test_ldexp_by_powers_that_are_no_normal_number(dtype, exponent):
    x = torch.tensor([2**20, 3 * 2**30, -(2**40), 5 * 2**33]).to(dtype)
    assert_exact(torch.ldexp, x, torch.tensor([exponent] * 4))
    assert_exact(lambda x: torch.ldexp(x, torch.full((4,), exponent)), x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8, torch.int32])
def test_least_common_multiples_that_do_not_fit(dtype):
    x = torch.tensor([2, 64, 100, 127, 0], dtype=dtype)
    y = torch.tensor([127, 3, 99, 126, 5], dtype=dtype)
    assert_exact(torch.lcm, x, y)
    if dtype.is_signed:
        assert_exact(torch.lcm, -x, y)


def test_infinite_complex_numbers():
    """The log of 0 is (-inf, 0), to any base."""
    x = torch.tensor([0, 1j, complex(float("inf"), 1), complex(-float("inf"), -2)])
    for fn in (torch.log, torch.log2, torch.log10):
        assert_off_by_one_digit_at_most(fn, x)
    assert_off_by_one_digit_at_most(torch.exp2, x)


def test_by_a_shared_tensor():
    x = torch.arange(1, 2001.0).view(40, 50)
    assert_exact(lambda x, y: (x / y, x / x[:, :1], (x / x[0]).floor()), x, torch.tensor(49.0))


def test_means_of_equal_numbers():
    x = torch.full((2, 7, 7, 7), 3.0)
    assert_exact(lambda x: (x.mean((2, 3)), x.mean(), torch.nn.functional.avg_pool2d(x, 7)), x)
    assert_exact(lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (1, 1)), x)


def test_integers():
    x = torch.arange(-1000, 1000) * 49
    assert_exact(lambda x: (x / 49, (x / 49).long(), x // 49, x % 49), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8])
def test_linspace_of_integers(dtype):
    for start, end, steps in ((4.3, 50, 31), (50, 1, 50), (3.7, -3.2, 50), (7, 9, 1), (7, 9, 0)):
        if dtype is not torch.uint8 or end >= 0:
            assert_exact(lambda n=steps, s=start, e=end: torch.linspace(s, e, n, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_of_powers(dtype):
    limits = torch.tensor([0.0, float("inf"), -1.0, float("nan")], dtype=dtype)
    twos = 2.0 ** torch.arange(-126, 128, dtype=dtype)
    tens = torch.tensor([float(f"1e{k}") for k in range(-10, 23)], dtype=dtype)
    assert_exact(torch.log2, torch.cat([twos, limits]))
    assert_exact(lambda x: torch.log2(x).floor(), torch.arange(1, 5000, dtype=dtype))
    assert_exact(torch.log10, torch.cat([tens, limits]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize("size", [5, 20])
@pytest.mark.parametrize("alpha", [0, 0.0, 2])
def test_factors_of_a_product_times_nothing(alpha, size, dtype):
    added, x = (
        torch.ones(size, size, dtype=dtype),
        torch.full((size, size), float("nan"), dtype=dtype),
    )
    stack = x.expand(2, -1, -1)
    assert_exact(lambda a, x: torch.addmm(a, x, x, alpha=alpha), added, x)
    assert_exact(lambda a, x: torch.addmv(a[0], x, x[0], alpha=alpha), added, x)
    if dtype is not torch.bfloat16:  # where eager reads or does not, as its kernels please
        assert_exact(lambda a, x: torch.addbmm(a, x, x, alpha=alpha), added, stack)
        assert_exact(lambda a, x: torch.baddbmm(a, x, x, alpha=alpha), added, stack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_three_operands_are_rounded_as_in_eager(dtype):
    torch.manual_seed(0)
    x, y, z = torch.randn(3, 1000, dtype=dtype)
    for f in (
        torch.addcmul,
        lambda x, y, z: torch.addcmul(x, y, z, value=0.3),
        lambda x, y, z: torch.ops.aten.addcdiv(x, y, z, value=-0.3),
        lambda x, y, z: torch.lerp(x, y, 0.1),
        lambda x, y, z: torch.lerp(x, y, 0.9),
        lambda x, y, z: torch.lerp(x, y, z),
        lambda x, y, z: torch.addcmul(x * 0.1, y * 0.1, z) * 0.1 - x,
    ):
        assert_exact(f, x, y, z)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_divided_by_a_known_zero(dtype):
    """Eager raises; XLA, which divides known numbers by the processor, ended the process."""

    def f(x):
        ones, zeros = torch.ones(3, dtype=dtype), torch.zeros(3, dtype=dtype)
        found = []
        for y in (zeros, x * 0):
            found += [ones // y, torch.div(ones, y, rounding_mode="trunc")]
            found += [ones % y, torch.fmod(ones, y), torch.gcd(ones, y), torch.lcm(ones, y)]
        return found

    made = compiled_anew(f)(torch.ones(3, dtype=dtype))
    assert [t.tolist() for t in made[:6]] == [t.tolist() for t in made[6:]]
    *quotients, rest, last, divisor, multiple = made[:6]
    for quotient in quotients:
        assert quotient.tolist() == [torch.tensor(-1).to(dtype)] * 3
    for one in (rest, last, divisor):
        assert one.tolist() == [1] * 3
    assert multiple.tolist() == [0] * 3
