"""Kernels of Pallas, and other functions of JAX, as functions of tensors."""

import contextlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import torch
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.dtypes import dtype_name
from xla_dynamo.xla_builder import call_jax

_F = TypeVar("_F", bound=Callable[..., Any])


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Any]
) -> Callable[..., Any]:
    """A function of tensors that calls a kernel of Pallas.

    Args:
        kernel: a function of JAX that calls `pallas_call`.
        output_shape_dtype_fn: takes the arguments, and returns a list of the shape and the dtype of
            each result, which is compared with the kernel's.

    Returns:
        A function of the kernel's arguments, which returns a tensor, or a tuple of several. Its
        `static_argnums` and `static_argnames` are not needed: what is no tensor is static.
    """

    def call(
        *args: Any, static_argnums: Any = None, static_argnames: Any = None, **kwargs: Any
    ) -> Any:
        promised = output_shape_dtype_fn(*args)
        results = call_jax(kernel, args, kwargs)
        results = tuple(results) if isinstance(results, tuple | list) else (results,)
        made = [(tuple(x.shape), x.dtype) for x in results]
        if made != [(tuple(shape), dtype) for shape, dtype in promised]:
            raise ValueError(f"the kernel made {made}, and output_shape_dtype_fn says {promised}")
        return results[0] if len(results) == 1 else results

    return call


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors, with gradients, that calls a function of JAX."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return call_jax(fn, args, kwargs)

    return call


def jax_import_guard() -> None:
    """Do nothing: JAX may be imported at any time, since it shares the client of this process."""


def requires_jax(func: _F) -> _F:
    """The function itself: JAX is there."""
    return func


def maybe_get_jax(log: bool = True) -> Any:
    """JAX, which is there."""
    return jax


def maybe_get_torchax() -> Any:
    """The package torchax, or None where it is not installed; nothing here needs it."""
    return importlib.import_module("torchax") if importlib.util.find_spec("torchax") else None


def jax_env_context() -> contextlib.AbstractContextManager[None]:
    """A block that changes nothing: no variable of the environment is in JAX's way."""
    return contextlib.nullcontext()


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> Any:
    """JAX's description of a tensor's shape and dtype."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """JAX's dtype for one of torch's.

    Raises:
        UnsupportedDtype: XLA has none.
    """
    return jnp.dtype(dtype_name(dtype))


def trace_pallas(
    kernel: Callable[..., Any],
    *args: Any,
    static_argnums: Any = None,
    static_argnames: Any = None,
    use_cache: bool = False,
    **kwargs: Any,
) -> tuple[str | None, list[torch.Tensor]]:
    """A TPU's code for a kernel of Pallas, and the tensors among its arguments.

    Args:
        kernel: a function of JAX that calls `pallas_call`.
        args: its arguments, of which tensors give their shapes and dtypes alone.
        static_argnums: numbers of arguments that are no arrays.
        static_argnames: names of such.
        use_cache: not used: JAX keeps what it has traced.
        kwargs: arguments by name.

    Returns:
        The text of the call's configuration, as XLA takes it; None if the function calls no kernel.
        And the tensors.
    """
    given = [to_jax_shape_dtype_struct(x) if isinstance(x, torch.Tensor) else x for x in args]
    jitted = jax.jit(kernel, static_argnums=static_argnums, static_argnames=static_argnames)
    lowered = jitted.trace(*given, **kwargs).lower(lowering_platforms=("tpu",))
    found: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        is_call = op.name == "stablehlo.custom_call"
        if is_call and ir.StringAttr(op.attributes["call_target_name"]).value == "tpu_custom_call":
            found.append(ir.StringAttr(op.attributes["backend_config"]).value)
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(visit)
    return found[0] if found else None, [x for x in args if isinstance(x, torch.Tensor)]
