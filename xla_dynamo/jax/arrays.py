"""Tensors to arrays of NumPy and JAX, and the dtypes of one for those of the other."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from xla_dynamo.lowerings.builders.dtypes import SUPPORTED_DTYPES, dtype_name

# NumPy knows these by ml_dtypes, and torch gives their bits alone.
_BITS = {1: torch.uint8, 2: torch.int16}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's elements.

    Args:
        tensor: of any dtype that StableHLO has.
    """
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = dtype_name(tensor.dtype)
    if hasattr(ml_dtypes, name):
        bits = tensor.contiguous().view(_BITS[tensor.dtype.itemsize])
        return bits.numpy().copy().view(getattr(ml_dtypes, name))
    return tensor.numpy().copy()


def to_array(tensor: torch.Tensor) -> jax.Array:
    """A copy of a tensor as an array of JAX's default device.

    Without `jax_enable_x64` JAX narrows 64-bit dtypes to 32 bits.
    """
    array = to_numpy(tensor)
    return jnp.asarray(array.astype(narrowed(tensor.dtype), copy=False))


def narrowed(dtype: torch.dtype) -> np.dtype:
    """JAX's dtype for tensors of one of torch's: of 32 bits for 64 without `jax_enable_x64`."""
    return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype_name(dtype)))


def torch_dtype_of(array: jax.Array | np.ndarray | jax.core.ShapedArray) -> torch.dtype:
    """The dtype of torch of the same name.

    Raises:
        TypeError: torch has none, as for keys of `jax.random` and integers of four bits.
    """
    dtype = getattr(torch, str(array.dtype), None)
    if dtype not in SUPPORTED_DTYPES:
        raise TypeError(
            f"torch has no tensors of the dtype {array.dtype}: convert the array before it is "
            "handed over (a key of jax.random by jax.random.key_data)"
        )
    return dtype


def on_jax(tensor: torch.Tensor) -> jax.Array:
    """An array that may be a view of a tensor's memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return jax.dlpack.from_dlpack(tensor)
