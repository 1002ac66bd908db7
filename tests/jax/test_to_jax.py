"""Models of torch as functions of JAX: values, derivatives, batches, shardings, state, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import xla_dynamo
from tests.jax import models
from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.jax import to_jax

MODELS = [models.bert, models.resnet]


def small():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
    )


def value_and_gradients(model, batch):
    """A jitted function of the parameters and the batch, its arguments, and torch's loss."""
    function, params = to_jax(model)
    step = jax.jit(jax.value_and_grad(functools.partial(models.jax_loss, function)))
    loss = models.torch_loss(model, *batch)
    loss.backward()
    return step, params, models.arrays_of(batch), loss.item()


@pytest.mark.parametrize("make", MODELS)
def test_gradients_of_a_whole_model(make):
    """Under jit: JAX's gradients are torch's."""
    model, batch = make()
    step, params, arrays, expected = value_and_gradients(model, batch)
    value, gradients = step(params, *arrays)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    models.assert_gradients(model, gradients)


@pytest.mark.parametrize(
    "make", [models.mlp, *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS)]
)
def test_gradients_over_eight_devices(make):
    """The batch is sharded, the parameters are whole on each device."""
    model, batch = make()
    step, params, arrays, expected = value_and_gradients(model, batch)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    assert mesh.size == 8
    sharded = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data")))
    value, gradients = step(jax.device_put(params, NamedSharding(mesh, PartitionSpec())), *sharded)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    models.assert_gradients(model, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS)
def test_a_batch_of_examples(make):
    model, (x, _) = make()
    function, params = to_jax(model)
    (x,) = models.arrays_of([x])
    one = jax.vmap(lambda x: function(params, x[None])["logits"][0])
    with torch.no_grad():
        expected = model(torch.from_numpy(np.array(x))).logits
    np.testing.assert_allclose(jax.jit(one)(x), expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_each_example():
    model, x = small(), torch.randn(3, 4)
    function, params = to_jax(model)
    each = jax.vmap(jax.grad(lambda p, x: (function(p, x) ** 2).sum()), (None, 0))
    found = each(params, jnp.asarray(x.numpy()))
    for i in range(3):
        model.zero_grad()
        (model(x[i]) ** 2).sum().backward()
        models.assert_gradients(model, {name: g[i] for name, g in found.items()})


def test_an_ensemble():
    """A vmap over the parameters."""
    function, params = to_jax(small())
    others = to_jax(small())[1]
    x = jnp.ones((3, 4))
    stacked = jax.tree.map(lambda a, b: jnp.stack([a, b]), params, others)
    found = jax.vmap(function, (0, None))(stacked, x)
    np.testing.assert_allclose(found[0], function(params, x), rtol=1e-5)
    np.testing.assert_allclose(found[1], function(others, x), rtol=1e-5)


def test_without_jit():
    model, x = small(), torch.randn(3, 4)
    function, params = to_jax(model)
    found = function(params, x)
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, model(x).detach(), rtol=1e-5, atol=1e-6)


def f(x):
    return (torch.sin(x) * torch.softmax(x, 0)).sum()


def test_gradients_of_gradients():
    function, params = to_jax(f)
    assert not params
    x = torch.randn(3)
    here = lambda x: function({}, x)  # noqa: E731
    third = jax.grad(lambda x: (jax.grad(lambda x: (jax.grad(here)(x) ** 2).sum())(x) ** 2).sum())

    def of_torch(x):
        grad = torch.func.grad
        return grad(lambda x: (grad(lambda x: (grad(f)(x) ** 2).sum())(x) ** 2).sum())(x)

    np.testing.assert_allclose(third(jnp.asarray(x.numpy())), of_torch(x), rtol=1e-4, atol=1e-5)


def test_hessian():
    """Forward over reverse over a batch of tangents."""
    function, _ = to_jax(f)
    x = torch.randn(3)
    found = jax.jit(jax.hessian(lambda x: function({}, x)))(jnp.asarray(x.numpy()))
    expected = torch.autograd.functional.hessian(f, x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_tangents_and_their_transpose():
    def rotate(x, y):
        return x * y.cos(), x.sin() * y

    function, _ = to_jax(rotate)
    x, y = torch.randn(2, 3)
    jx, jy = models.arrays_of([x, y])
    found = jax.jvp(lambda x: function({}, x, jy), (jx,), (jnp.ones(3),))
    expected = torch.func.jvp(lambda x: rotate(x, y), (x,), (torch.ones(3),))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    _, linear = jax.linearize(lambda x: function({}, x, jy), jx)
    # A batch of what is linear has no gradient graph to take its transpose from.
    (back,) = jax.linear_transpose(jax.vmap(linear), jnp.ones((2, 3)))(
        (jnp.ones((2, 3)), jnp.ones((2, 3)))
    )
    row = (y.cos() + x.cos() * y).numpy()
    np.testing.assert_allclose(back, np.stack([row, row]), rtol=1e-5)


def test_complex_gradients_are_those_of_jax():
    def of_torch(z):
        return (z * z.conj()).real.sum() + (z**2).imag.sum()

    def of_jax(z):
        return (z * z.conj()).real.sum() + (z**2).imag.sum()

    function, _ = to_jax(of_torch)
    z = jnp.asarray([1 + 2j, -0.5j])
    found = jax.grad(lambda z: function({}, z))(z)
    np.testing.assert_allclose(found, jax.grad(of_jax)(z), rtol=1e-5)


class Doubled(torch.autograd.Function):
    """The gradient is not the function's; without `setup_context`, as in older code."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 7 * gradient * x


def test_what_the_model_says_of_its_gradients():
    """detach, no_grad and an autograd.Function."""

    def model(x):
        with torch.no_grad():
            target = x.square()
        return (Doubled.apply(x) * target + x * x.detach()).sum()

    function, _ = to_jax(model)
    x = torch.randn(3, requires_grad=True)
    model(x).backward()
    (array,) = models.arrays_of([x.detach()])
    np.testing.assert_allclose(jax.grad(lambda x: function({}, x))(array), x.grad, rtol=1e-5)


def test_batch_norm_in_training():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    x = torch.randn(8, 4)
    function, params = to_jax(model)
    with pytest.raises(ValueError, match=r"changes its buffers .*with_buffers"):
        function(params, x)
    call = jax.jit(function.with_buffers)
    buffers = function.buffers
    for _ in range(2):
        found, buffers = call(params, buffers, models.arrays_of([x])[0])
        expected = model(x)
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)
    for name, buffer in model.named_buffers():
        np.testing.assert_allclose(buffers[name], buffer, rtol=1e-5, err_msg=name)
    model.eval()
    np.testing.assert_allclose(
        function.with_buffers(params, buffers, x)[0], model(x).detach(), rtol=1e-4, atol=1e-5
    )


def test_random_numbers():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    function, params = to_jax(model)
    x, key = jnp.ones((3, 4)), jax.random.key(0)
    with pytest.raises(ValueError, match="draws random numbers: pass a key"):
        function(params, x)
    loss = lambda params, key: function(params, x, rng=key).sum()  # noqa: E731
    value = loss(params, key)
    assert value == loss(params, key)
    assert value != loss(params, jax.random.key(1))
    # The loss is linear in the last layer, if its gradient draws the same numbers.
    gradient = jax.grad(loss)(params, key)
    again = sum((gradient[n] * params[n]).sum() for n in ("2.weight", "2.bias"))
    np.testing.assert_allclose(again, value, rtol=1e-5)
    keys = jax.random.split(key, 3)
    each = jax.vmap(loss, (None, 0))(params, keys)
    np.testing.assert_allclose(each, [loss(params, k) for k in keys], rtol=1e-5)
    same = jax.vmap(lambda x: function(params, x, rng=key))(jnp.stack([x, x]))
    np.testing.assert_allclose(same[0], same[1])


def test_checkpoints_that_would_draw_again():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
    again = torch.utils.checkpoint.checkpoint
    function, params = to_jax(lambda x: again(layer, x, use_reentrant=False).sum())
    assert not params
    with pytest.raises(UnsupportedOperator, match=r"draws 2 times where the model draws 1 times"):
        jax.grad(lambda x: function({}, x, rng=jax.random.key(0)))(jnp.ones((3, 4)))


def test_an_argument_that_the_model_writes_into():
    function, _ = to_jax(lambda x: x.mul_(2) + 1)
    x = jnp.ones(3)
    np.testing.assert_array_equal(function({}, x), [3, 3, 3])
    np.testing.assert_array_equal(jax.grad(lambda x: function({}, x).sum())(x), [2, 2, 2])
    np.testing.assert_array_equal(x, [1, 1, 1])


def test_a_write_that_torch_cannot_batch():
    """Then vmap goes from element to element."""

    def model(x):
        table = torch.zeros(3)
        table[1:] = x
        return table * 2

    function, _ = to_jax(model)
    found = jax.vmap(lambda x: function({}, x))(jnp.arange(6.0).reshape(3, 2))
    np.testing.assert_allclose(found, [[0, 0, 2], [0, 4, 6], [0, 8, 10]])


def test_dtypes():
    """Without x64, int32 arrays are indices, and what torch has in 64 bits is narrowed outside."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
            self.register_buffer("offset", torch.tensor(2**40))

        def forward(self, x, i):
            return x.gather(0, i) * self.scale, (i + self.offset - 2**40 + 1).double()

    function, params = to_jax(Model())
    assert params["scale"].dtype == jnp.bfloat16
    function.buffers["offset"] = jnp.asarray(0)
    x, places = function(params, jnp.ones(2, jnp.bfloat16), jnp.asarray([1, 0]))
    assert x.dtype == jnp.bfloat16
    assert places.dtype == jnp.float32


def test_arguments_and_results_of_any_structure():
    def model(pair, *, scale=1.0, named):
        x, y = pair
        return {"sum": x + y, "rest": (named["z"] * scale, None, 3, [x])}

    function, _ = to_jax(model)
    x, y, z = jnp.ones(2), jnp.ones(2) * 2, jnp.ones(1)
    found = function({}, (x, y), scale=2.5, named={"z": z})
    expected = {"sum": x + y, "rest": (z * 2.5, None, 3, [x])}
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert function({}, (x, y), scale=2, named={"z": z})["rest"][0] == 2


def test_shared_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    function, params = to_jax(model)
    assert set(params) == {"0.weight", "0.bias", "1.bias"}
    x = torch.randn(2, 3)
    gradients = jax.grad(lambda p: function(p, x).sum())(params)
    model(x).sum().backward()
    models.assert_gradients(model, gradients)


@pytest.mark.parametrize("check_vma", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_inside_shard_map(check_vma):
    """Each device has rows of x; the gradients of the parameters are sums over the devices."""
    function, params = to_jax(small())
    mesh = Mesh(np.array(jax.devices()), ("data",))
    x = jnp.arange(64.0).reshape(16, 4) / 64
    rows, whole = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        function, mesh=mesh, in_specs=(whole, rows), out_specs=rows, check_vma=check_vma
    )
    loss = lambda function: jax.value_and_grad(lambda p, x: (function(p, x) ** 2).sum())  # noqa: E731
    value, gradients = jax.jit(loss(sharded))(params, x)
    expected, expected_gradients = loss(function)(params, x)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name in params:
        np.testing.assert_allclose(
            gradients[name], expected_gradients[name], rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_inside_scan_and_checkpoint():
    function, params = to_jax(torch.nn.Linear(3, 3))

    def loss(params):
        step = lambda x, _: (jnp.tanh(function(params, x)), x.sum())  # noqa: E731
        return jax.lax.scan(jax.checkpoint(step), jnp.ones(3), length=4)[1].sum()

    weight, bias = (params[n] for n in ("weight", "bias"))

    def plain(params):
        step = lambda x, _: (jnp.tanh(params["weight"] @ x + params["bias"]), x.sum())  # noqa: E731
        return jax.lax.scan(step, jnp.ones(3), length=4)[1].sum()

    params = {"weight": weight, "bias": bias}
    found, expected = jax.grad(loss)(params), jax.grad(plain)(params)
    for name in params:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_the_model_is_part_of_the_program():
    """The user's lines, and no call back into Python."""
    function, params = to_jax(f)
    text = jax.jit(function).lower(params, jnp.ones(3)).as_text(debug_info=True)
    assert "stablehlo.sine" in text
    assert "test_to_jax.py" in text
    function, params = to_jax(small())
    text = jax.jit(function).lower(params, jnp.ones((3, 4))).as_text()
    assert "stablehlo.dot_general" in text
    assert "callback" not in text
    assert "custom_call" not in text


def test_exported():
    function, params = to_jax(small())
    x = jnp.ones((3, 4))
    exported = jax.export.export(jax.jit(function))(params, x)
    assert "tensor<8x4xf32>" in exported.mlir_module()
    np.testing.assert_allclose(exported.call(params, x), function(params, x), rtol=1e-6)


def test_errors():
    function, params = to_jax(torch.nn.Linear(3, 2))
    x = jnp.ones(3)
    with pytest.raises(ValueError, match="have no 'bias': pass all"):
        function({"weight": params["weight"]}, x)
    with pytest.raises(ValueError, match="no 'other' among its parameters"):
        function({**params, "other": x}, x)
    with pytest.raises(ValueError, match=r"'bias' .* shape \(3,\) where the model has \(2,\)"):
        function({**params, "bias": x}, x)
    with pytest.raises(ValueError, match="dict of arrays by name, not list"):
        function([x], x)
    with pytest.raises(TypeError, match="needs a module or a function, not int"):
        to_jax(3)
    with pytest.raises(TypeError, match="returns a set, which is no tensor"):
        to_jax(lambda x: {1})[0]({}, x)


def test_an_operator_without_a_rule():
    @torch.library.custom_op("xla_dynamo_to_jax::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    unknown.register_fake(torch.empty_like)
    function, _ = to_jax(lambda x: unknown(x) + 1)
    with pytest.raises(UnsupportedOperator, match=r"no lowering for xla_dynamo_to_jax\.unknown"):
        function({}, jnp.ones(3))


def test_public_names():
    assert xla_dynamo.jax.to_jax is to_jax
