"""Functions of JAX on tensors: eager, compiled, differentiated, batched, and Pallas kernels."""

import functools

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas
from torch._dynamo.exc import BackendCompilerFailed

import xla_dynamo
from tests.compiling import compiled_whole, leaf
from xla_dynamo.jax import call_jax, to_jax
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_threads import as_if_compiling


def mixed(x, y):
    return {"product": jnp.sin(x) @ y, "rest": (jnp.argmax(x), None, [x * 2])}


def by_jax(x, y):
    found = call_jax(mixed, x * 2, y)
    place, nothing, (double,) = found["rest"]
    assert nothing is None
    return (found["product"] ** 2).sum() + double.sum() + place


def by_torch(x, y):
    x = x * 2
    return ((x.sin() @ y) ** 2).sum() + (x * 2).sum() + x.argmax()


def gradients(fn, x, y):
    x, y = (t.detach().requires_grad_() for t in (x, y))
    value = fn(x, y)
    value.backward()
    return value.detach(), x.grad, y.grad


def test_in_eager_code():
    x, y = torch.randn(3, 4), torch.randn(4, 2)
    found = call_jax(mixed, x, y)
    assert list(found) == ["product", "rest"]
    assert found["rest"][0].dtype is torch.int64  # JAX's own dtype would be int32
    torch.testing.assert_close(gradients(by_jax, x, y), gradients(by_torch, x, y))


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
def test_inside_a_compiled_function(dynamic):
    """One graph, nothing left to torch, with a backward."""
    run = compiled_whole(by_jax, dynamic=dynamic)
    for n in (3, 5):
        x, y = torch.randn(n, 4), torch.randn(4, 2)
        torch.testing.assert_close(gradients(run, x, y), gradients(by_torch, x, y))


def test_inside_a_compiled_module_that_trains():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return call_jax(jax.nn.silu, self.linear(x)).mean()

    model, x = Layer(), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = xla_dynamo.train_step(model, lambda model, x: model(x), optimizer)
    expected = torch.nn.functional.silu(model.linear(x)).mean()
    torch.testing.assert_close(step(x), expected.detach())
    assert step(x) < expected


def wave(x):
    return jnp.sin(x) * x


def test_derivatives_of_any_order():
    x = leaf(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: call_jax(wave, x), x)
    assert torch.autograd.gradgradcheck(lambda x: call_jax(wave, x), x)


def conjugated(z):
    return jnp.conj(z) * z**2


def test_complex_gradients_are_those_of_torch():
    z = leaf(3, dtype=torch.complex128)
    assert torch.autograd.gradcheck(lambda z: call_jax(conjugated, z), z)


def test_batches():
    x = torch.randn(2, 3)
    found = torch.func.vmap(lambda x: call_jax(jnp.cumsum, x))(x)
    torch.testing.assert_close(found, x.cumsum(1))
    found = torch.func.vmap(torch.func.grad(lambda x: call_jax(wave, x).sum()))(x)
    torch.testing.assert_close(found, x.cos() * x + x.sin())


def test_a_function_of_jax_in_a_model_for_jax():
    """Through torch and back: jit, vmap and a second gradient."""
    function, _ = to_jax(lambda x: call_jax(jnp.sin, x) * x)
    second = jax.jit(jax.vmap(jax.grad(jax.grad(lambda x: function({}, x)))))
    x = jnp.arange(3.0)
    assert jnp.allclose(second(x), 2 * jnp.cos(x) - x * jnp.sin(x), atol=1e-6)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.bfloat16, torch.bool, torch.uint8, torch.complex64]
)
def test_types_are_kept(dtype):
    x = torch.ones(3, dtype=dtype)
    found = call_jax(jnp.flip, x)
    assert found.dtype is dtype
    torch.testing.assert_close(found, x)
    torch.testing.assert_close(compiled_whole(lambda x: call_jax(jnp.flip, x))(x), x)


def unchanged(x):
    return x, x, x + 1


def test_results_share_no_memory():
    x = torch.randn(64)
    before = x.clone()
    first, second, _ = call_jax(unchanged, x)
    first.zero_()
    torch.testing.assert_close(x, before)
    torch.testing.assert_close(second, before)


def test_operands_of_any_layout():
    x = torch.randn(4, 3).t()[::2]
    torch.testing.assert_close(call_jax(jnp.tanh, x), x.tanh())
    torch.testing.assert_close(compiled_whole(lambda x: call_jax(jnp.tanh, x))(x), x.tanh())


def test_a_function_is_traced_once():
    traced = []

    def counted(x):
        traced.append(x.shape)
        return x + 1

    for _ in range(3):
        call_jax(counted, torch.ones(3))
    assert len(traced) == 1


def scaled(x, *, factor):
    return x * factor


def test_other_arguments_by_partial():
    twice = functools.partial(scaled, factor=2.0)
    x = torch.ones(3)
    torch.testing.assert_close(call_jax(twice, x), 2 * x)
    torch.testing.assert_close(compiled_whole(lambda x: call_jax(twice, x))(x), 2 * x)


def _kernel(x, y, out):
    out[...] = x[...] * y[...] + 1.0


@jax.custom_vjp
def fused(x, y):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(_kernel, out_shape=shape, interpret=True)(x, y)


fused.defvjp(lambda x, y: (fused(x, y), (x, y)), lambda kept, g: (g * kept[1], g * kept[0]))


@pytest.mark.parametrize("compile", [lambda fn: fn, compiled_whole])
def test_a_pallas_kernel(compile):
    """With the gradient that `jax.custom_vjp` gives it."""
    run = compile(lambda x, y: call_jax(fused, x.sin(), y).sum())
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    expected = gradients(lambda x, y: (x.sin() * y + 1).sum(), x, y)
    torch.testing.assert_close(gradients(run, x, y), expected)


def test_nothing_runs_in_torch():
    metrics.clear_all()
    with torch.no_grad():
        compiled_whole(by_jax)(torch.randn(3, 4), torch.randn(4, 2))
    assert metrics.counter_value("xla::call_jax") == 0


def test_errors():
    with pytest.raises(TypeError, match="takes tensors, not float: give other arguments"):
        call_jax(wave, 2.0)
    with pytest.raises(TypeError, match="no_array returns a str, which is no array"):
        call_jax(no_array, torch.ones(3))
    with pytest.raises(Exception, match="no_array returns a str") as raised:
        compiled_whole(lambda x: call_jax(no_array, x))(torch.ones(3))
    assert not isinstance(raised.value, BackendCompilerFailed)


def no_array(x):
    return "x"


def test_the_structure_of_results_may_depend_on_the_shape():
    """Sizes 3, 2 and 3 again: JAX traces at the first two alone."""

    def rows(x):
        return {"rows": list(x)} if x.shape[0] > 2 else tuple(x)

    compiled = compiled_whole(lambda x: call_jax(rows, x * 2), dynamic=False)
    for run in (lambda x: call_jax(rows, x * 2), compiled):
        for size in (3, 2, 3, 4, 2):
            x = torch.randn(size, 2)
            found = run(x)
            assert isinstance(found, dict) == (size > 2)
            found = found["rows"] if size > 2 else found
            torch.testing.assert_close(torch.stack(list(found)), x * 2)


@pytest.mark.parametrize("make", [lambda x: jax.random.key(0), lambda x: x.astype(jnp.int4)])
def test_a_result_of_a_dtype_that_torch_lacks_is_an_error(make):
    with pytest.raises(TypeError, match="torch has no tensors of the dtype"):
        call_jax(make, torch.ones(2))


def test_tangents_of_forward_mode_are_not_lost():
    x = torch.ones(2)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="forward mode"):
            call_jax(jnp.sin, dual)
        with as_if_compiling(), pytest.raises(NotImplementedError, match="forward mode"):
            call_jax(jnp.sin, dual)
        torch.testing.assert_close(call_jax(jnp.sin, x), x.sin())
