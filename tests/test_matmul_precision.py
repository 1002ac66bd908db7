"""Products of float32 say how exact they must be; on the CPU they are exact."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.compiling import compiled
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.options import Options
from xla_dynamo.programs.lower import lower
from xla_dynamo.programs.targets import target_of
from xla_dynamo.runtime import metrics


@pytest.fixture(autouse=True)
def as_told_before():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def stablehlo(f, *inputs, platform="cuda", **options):
    """The lines of a function's products in the module for a platform."""
    gm = make_fx(lambda *x: torch.utils._pytree.tree_leaves(f(*x)), tracing_mode="fake")(*inputs)
    request = Request(Options.parse(options))
    program = lower(gm, static_values(gm), target_of(platform, request.options), request)
    return [line for line in str(program.module).splitlines() if "dot_general" in line]


@pytest.mark.parametrize(
    ("told", "written"), [("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "DEFAULT")]
)
def test_every_product_says_it(told, written):
    def f(x):
        return (torch.mm(x, x), torch.linalg.matrix_exp(x), x.cfloat() @ x.cfloat())

    given = stablehlo(f, torch.randn(4, 4), matmul_precision=told)
    torch.set_float32_matmul_precision(told)
    assert given == stablehlo(f, torch.randn(4, 4))  # what torch was told is the default
    assert len(given) > 2
    for line in given:
        assert f"precision = [{written}, {written}]" in line or "= [HIGHEST, HIGHEST]" in line
    for line in given[:2]:  # matrix_exp, in float64, stands after them
        assert f"precision = [{written}, {written}]" in line


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_say_nothing(dtype):
    x = torch.randn(4, 4).to(dtype)
    (line,) = stablehlo(torch.mm, x, x)
    assert "precision" not in line


def test_the_default_is_exact():
    assert Options().matmul_precision == "highest"


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_cpu_is_exact_at_any(precision):
    x = torch.randn(256, 256)
    options = {"matmul_precision": precision}
    y = compiled(torch.mm, **options)(x, x)
    exact = x.double() @ x.double()
    assert (y - exact).abs().max() < 1e-4 * exact.abs().max()
    assert not [line for line in stablehlo(torch.mm, x, x, platform="cpu") if "precision" in line]


def test_a_change_is_seen():
    """Dynamo guards on what torch was told."""
    f, x = compiled(torch.mm), torch.randn(4, 4)
    metrics.clear_all()
    for precision in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        f(x, x)
    assert metrics.counter_value("UncachedCompile") == 2


def test_the_newer_way_to_tell():
    """Torch's older function raises where the newer settings say what it has no name for."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert Options().matmul_precision == "high"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
