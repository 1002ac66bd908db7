"""Linear algebra: decompositions, solves and determinants, by JAX's LAPACK and cuSOLVER calls."""

import jax.numpy as jnp
import torch

from xla_dynamo.lowerings.build import Value
from xla_dynamo.lowerings.from_jax import call_jax
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten


@lowers(aten._linalg_eigh.default)
def eigh(
    ctx: Context, A: Value, UPLO: str = "L", compute_v: bool = True  # noqa: N803
) -> tuple[Value, Value]:
    return tuple(call_jax(ctx, jnp.linalg.eigh, A, UPLO=UPLO))
