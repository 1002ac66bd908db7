"""Functions and models of torch for users of JAX, and functions of JAX for users of torch.

`to_jax` makes a pure function of JAX of a model.
"""

from xla_dynamo.jax.jax_function import JaxFunction, to_jax

__all__ = ["JaxFunction", "to_jax"]
