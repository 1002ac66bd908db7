"""Operators of the user's own: rules in StableHLO, JAX and Pallas, or none; their gradients."""

import functools

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas
from jax.extend.mlir.dialects import stablehlo as hlo
from torch._dynamo.exc import BackendCompilerFailed

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled, compiled_whole, leaf
from xla_dynamo.lowerings import table
from xla_dynamo.runtime import metrics

calls = []


@torch.library.custom_op("xla_dynamo_own::scaled_add", mutates_args=())
def scaled_add(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    calls.append("scaled_add")
    return x + scale * y


@scaled_add.register_fake
def _(x, y, scale=2.0):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.scale = inputs[2]


scaled_add.register_autograd(lambda ctx, grad: (grad, grad * ctx.scale, None), setup_context=_setup)


@torch.library.custom_op("xla_dynamo_own::moments", mutates_args=())
def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    calls.append("moments")
    return x.mean(), x.square().mean()


@moments.register_fake
def _(x):
    return x.new_empty(()), x.new_empty(())


@torch.library.custom_op("xla_dynamo_own::pieces", mutates_args=())
def pieces(xs: list[torch.Tensor], names: str = "ab") -> list[torch.Tensor]:
    return [x * len(names) for x in xs]


@pieces.register_fake
def _(xs, names="ab"):
    return [torch.empty_like(x) for x in xs]


@torch.library.custom_op("xla_dynamo_own::push_", mutates_args=("buffer",))
def push_(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    buffer.copy_(torch.cat([buffer[1:], x[None]]))
    return buffer.sum(0)


@push_.register_fake
def _(buffer, x):
    return torch.empty_like(x)


def in_stablehlo(ctx, x, y, scale=2.0):
    constant = xla_dynamo.lowerings.builders.build.full_like(y, scale)
    return hlo.add(x, hlo.multiply(constant, y))


def in_jax(ctx, x, y, scale=2.0):
    return xla_dynamo.call_jax(ctx, lambda x, y, scale: x + scale * y, x, y, scale=scale)


def _kernel(x, y, out, *, scale):
    out[...] = x[...] + scale * y[...]


def _by_kernel(x, y, scale):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    kernel = functools.partial(_kernel, scale=scale)
    return pallas.pallas_call(kernel, out_shape=shape, interpret=True)(x, y)


def in_pallas(ctx, x, y, scale=2.0):
    return xla_dynamo.call_jax(ctx, _by_kernel, x, y, scale=scale)


@pytest.fixture
def lowers(monkeypatch):
    """`xla_dynamo.lowers`, with the table as it was afterwards."""
    monkeypatch.setattr(table, "TABLE", dict(table.TABLE))
    calls.clear()
    return xla_dynamo.lowers


def f(x, y):
    return (scaled_add(x.sin(), y, 2.5) * scaled_add(y, x)).sum()


@pytest.mark.parametrize("rule", [in_stablehlo, in_jax, in_pallas])
def test_a_rule(lowers, rule):
    lowers(torch.ops.xla_dynamo_own.scaled_add.default)(rule)
    run = compiled_whole(f)
    with torch.no_grad():
        run(torch.ones(2), torch.ones(2))
    assert not calls  # of torch's own function
    assert_matches_eager(run, leaf(6, 3), leaf(6, 3))


@pytest.mark.parametrize("rule", [in_stablehlo, in_jax, in_pallas])
def test_a_rule_at_dynamic_sizes(lowers, rule):
    lowers("xla_dynamo_own.scaled_add.default")(rule)
    run = compiled_whole(f, dynamic=True)
    for n in (2, 5, 3):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        assert_matches_eager(run, x, y)


def test_no_rule():
    metrics.clear_all()
    calls.clear()
    run = compiled(f)
    assert_matches_eager(run, leaf(6, 3), leaf(6, 3))
    assert metrics.counter_value("xla_dynamo_own::scaled_add") == 2
    assert len(calls) == 4  # two of them in eager


def test_no_rule_and_no_fallback():
    with pytest.raises(BackendCompilerFailed, match="no lowering for xla_dynamo_own") as raised:
        compiled_whole(f)(torch.ones(2), torch.ones(2))
    assert "@xla_dynamo.lowers(op)" in str(raised.value)
    assert "scaled_add(x.sin(), y, 2.5)" in str(raised.value)


def test_several_results(lowers):
    def g(x):
        mean, square = moments(x)
        return (x - mean) / (square - mean**2).sqrt()

    x = torch.randn(5, 4)
    assert_matches_eager(compiled(g), x)

    @lowers(torch.ops.xla_dynamo_own.moments.default)
    def rule(ctx, x):
        return xla_dynamo.call_jax(ctx, lambda x: (jnp.mean(x), jnp.mean(x * x)), x)

    torch._dynamo.reset()
    calls.clear()
    run = compiled_whole(g)
    actual = run(x)
    assert not calls
    torch.testing.assert_close(actual, g(x))


def test_lists_of_tensors():
    def g(x, y):
        a, b = pieces([x + 1, y], names="abc")
        return a.sum() + b.exp()

    x, y = torch.randn(3), torch.randn(4)
    assert_matches_eager(compiled(g), x, y)


def test_one_that_mutates():
    def g(buffer, x):
        newest = push_(buffer, x.sin())
        return newest * 2 + buffer[-1]

    run, buffer = compiled(g), torch.zeros(3, 2)
    for _ in range(4):
        x = torch.randn(2)
        assert_matches_eager(run, buffer, x)


def test_a_rule_of_the_wrong_type_is_its_own_fault(lowers):
    @lowers(torch.ops.xla_dynamo_own.scaled_add.default)
    def rule(ctx, x, y, scale=2.0):
        return xla_dynamo.call_jax(ctx, lambda x: x[:1], x)

    with pytest.raises(BackendCompilerFailed, match="This is a fault of the rule") as raised:
        compiled_whole(f)(torch.ones(2), torch.ones(2))
    assert "test_own_operators" in str(raised.value)
