"""Functions and models of torch for users of JAX, and functions of JAX for users of torch.

`to_jax` makes a pure function of JAX of a model. `call_jax` calls a function of JAX on tensors,
also in a compiled function.
"""

from xla_dynamo.jax.call_jax import call_jax
from xla_dynamo.jax.jax_function import JaxFunction, to_jax

__all__ = ["JaxFunction", "call_jax", "to_jax"]
