"""Models of torch as functions of JAX: what surrounds a call, and arguments that torch lacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from xla_dynamo.jax import to_jax


@pytest.mark.parametrize(
    "around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_what_surrounds_the_call_in_torch_makes_no_difference(around):
    """Cold: a model that nobody has called, so that it is traced inside."""
    model, x = torch.nn.Linear(2, 3), torch.randn(4, 2)
    function, params = to_jax(model)
    with around():
        value, gradients = jax.value_and_grad(lambda p: function(p, x.numpy()).sum())(params)
    expected = model(x).sum()
    expected.backward()
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-5)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: jax.random.key(0), lambda: jnp.ones(2, jnp.int4)])
def test_an_argument_of_a_dtype_that_torch_lacks_is_an_error(make):
    function, params = to_jax(lambda x: x)
    with pytest.raises(TypeError, match="torch has no tensors of the dtype"):
        function(params, make())
