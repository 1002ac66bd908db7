"""A primitive of JAX's that computes a function of torch, with the rules of every transform.

Its lowering writes the function's StableHLO into JAX's module, so that XLA optimizes it with what
is around and partitions it over devices. Derivatives, transposes and batches are the same
primitive of other functions of torch (`torch_functions`).
"""

import functools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import ad, batching, mlir

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.jax.arrays import narrowed, torch_dtype_of
from xla_dynamo.jax.lower_graph import call_graph
from xla_dynamo.jax.torch_functions import TorchFunction
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.target import Target
from xla_dynamo.runtime.jaxlib_private import result_type, varying_axes

log = logging.getLogger("xla_dynamo")

# Operands: a seed, ui32[2], if the function draws random numbers; then its inputs. 64-bit dtypes
# are of 32 bits outside of it, where JAX is not set to have them.
torch_call_p = Primitive("torch_call")
torch_call_p.multiple_results = True


def torch_call(function: TorchFunction, operands: Sequence[Any]) -> list[jax.Array]:
    """Apply a function of torch to arrays, or to what JAX traces in their place.

    Inside `jax.shard_map` all operands vary over the same axes then, as JAX asks of primitives: the
    transpose of what makes them so is the sum of the devices' gradients.
    """
    axes = frozenset[str]().union(*map(varying_axes, operands))
    given = [
        jax.lax.pcast(x, tuple(axes - varying_axes(x)), to="varying") if axes else x
        for x in operands
    ]
    return torch_call_p.bind(*given, function=function)


@functools.lru_cache(maxsize=1024)
def _jitted(function: TorchFunction) -> Any:
    return jax.jit(lambda *operands: torch_call(function, operands))


@torch_call_p.def_impl
def _run(*operands: Any, function: TorchFunction) -> list[jax.Array]:
    return _jitted(function)(*operands)


@torch_call_p.def_abstract_eval
def _types(*operands: Any, function: TorchFunction) -> list[jax.core.ShapedArray]:
    return [result_type(t.shape, narrowed(t.dtype), operands) for t in function.outputs]


# --- lowering ----------------------------------------------------------------------------------


def _lower(ctx: mlir.LoweringRuleContext, *operands: ir.Value, function: TorchFunction) -> Any:
    module = ctx.module_context
    if len(module.platforms) > 1:
        raise UnsupportedError(
            f"a function of torch is lowered for one platform, not for {module.platforms}: lower "
            "or export for each by itself"
        )
    (platform,) = module.platforms
    devices = getattr(module.axis_context, "num_devices", None)
    if devices is None:  # inside shard_map
        devices = module.axis_context.mesh.size
    target = Target(_PLATFORMS.get(platform, platform), partitions=devices, embedded=True)
    seed, inputs = None, list(operands)
    if function.takes_seed:
        seed, *inputs = operands
        bits = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(64))
        seed = build.reshape(hlo.bitcast_convert(bits, seed), [1])
    pairs = zip(inputs, function.inputs, strict=True)
    given = [build.cast(x, type_.dtype) for x, type_ in pairs]
    results = call_graph(
        module.module, module.symbol_table, function.name, function.graph, given, seed, target
    )
    avals = zip(results, ctx.avals_out, strict=True)
    return [build.cast(x, torch_dtype_of(aval)) for x, aval in avals]


_PLATFORMS = {"gpu": "cuda"}
mlir.register_lowering(torch_call_p, _lower)


# --- derivatives -------------------------------------------------------------------------------


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, function: TorchFunction
) -> tuple[list[Any], list[Any]]:
    """The results, and their tangents: linear in the inputs' tangents, by another call."""
    results = torch_call(function, primals)
    found = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]
    behind_seed = tangents[function.takes_seed :]
    wrt = tuple(
        i
        for i, (type_, tangent) in enumerate(zip(function.inputs, behind_seed, strict=True))
        if type_.is_differentiable and type(tangent) is not ad.Zero
    )
    differentiable = [i for i, t in enumerate(function.outputs) if t.is_differentiable]
    if wrt and differentiable:
        given = [behind_seed[i] for i in wrt]
        for i, x in zip(
            differentiable, torch_call(function.jvp(wrt), [*primals, *given]), strict=True
        ):
            found[i] = x
    return results, found


def _transpose(
    cotangents: Sequence[Any], *operands: Any, function: TorchFunction
) -> list[jax.Array | None]:
    """The cotangents of those operands that are not known, in which the function is linear."""
    seed, inputs = operands[: function.takes_seed], operands[function.takes_seed :]
    linear = tuple(i for i, x in enumerate(inputs) if ad.is_undefined_primal(x))
    results = tuple(i for i, x in enumerate(cotangents) if type(x) is not ad.Zero)
    if not results:
        avals = [x.aval if ad.is_undefined_primal(x) else None for x in operands]
        return [aval and ad.Zero(aval.to_ct_aval()) for aval in avals]
    known = [x for x in inputs if not ad.is_undefined_primal(x)]
    given = [*seed, *known, *(cotangents[i] for i in results)]
    found = iter(torch_call(function.transposed(linear, results), given))
    return [next(found) if ad.is_undefined_primal(x) else None for x in operands]


ad.primitive_jvps[torch_call_p] = _differentiate
ad.primitive_transposes[torch_call_p] = _transpose


# --- batches -----------------------------------------------------------------------------------


def _batch(
    operands: Sequence[Any], dims: Sequence[Any], *, function: TorchFunction
) -> tuple[list[jax.Array], list[int]]:
    """The function at every element of a batch: at once if torch can, else one after another."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    if not (function.takes_seed and dims[0] is not None):
        batched = function.vmap(size, tuple(dims[function.takes_seed :]))
        if _is_possible(batched):
            results = torch_call(batched, operands)
            return results, [0] * len(results)
    results = _one_after_another(function, operands, dims)
    return results, [0] * len(results)


@functools.lru_cache(maxsize=1024)
def _is_possible(batched: TorchFunction) -> bool:
    try:
        assert batched.graph
    except RuntimeError as error:  # such as a write in place that torch.func cannot batch
        log.info("%s: jax.vmap runs element by element, since %s", batched.name, error)
        return False
    return True


def _one_after_another(
    function: TorchFunction, operands: Sequence[Any], dims: Sequence[int | None]
) -> list[jax.Array]:
    pairs = list(zip(operands, dims, strict=True))

    def each(mapped: list[jax.Array]) -> list[jax.Array]:
        given = iter(mapped)
        return torch_call(function, [x if d is None else next(given) for x, d in pairs])

    return jax.lax.map(each, [jnp.moveaxis(x, d, 0) for x, d in pairs if d is not None])


batching.primitive_batchers[torch_call_p] = _batch
