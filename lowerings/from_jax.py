"""Rules written in JAX: trace a function at the operands' types and inline its StableHLO."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.build import Value, dtype_of, shape_of
from xla_dynamo.lowerings.table import Context

_PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "tpu": "tpu", "rocm": "rocm"}


def call_jax(ctx: Context, fn: Callable[..., Any], *operands: Value, **static: Any) -> Any:
    """Emit a call of `fn(*arrays, **static)`, a traceable JAX function, on these operands.

    `static` must be hashable and is part of the key under which a traced function is kept, with
    `fn` itself: pass a module-level function, never a lambda made in the rule. Types are not
    narrowed to 32 bits. The result has the structure that fn returns (value, tuple or list).
    """
    avals = tuple(jax.ShapeDtypeStruct(shape_of(x), _numpy_dtype(x)) for x in operands)
    key = (fn, tuple((a.shape, str(a.dtype)) for a in avals), tuple(sorted(static.items())))
    if key not in ctx.functions:
        ctx.functions[key] = _add_function(ctx, fn, avals, static)
    name, tree = ctx.functions[key]
    callee = ir.SymbolTable(ctx.module.operation)[name]
    results = func.CallOp(callee, list(operands)).results
    return jax.tree_util.tree_unflatten(tree, list(results))


def _add_function(ctx: Context, fn: Any, avals: Any, static: dict[str, Any]) -> Any:
    with jax.enable_x64(True):
        traced = jax.jit(lambda *args: fn(*args, **static), keep_unused=True).trace(*avals)
        lowered = traced.lower(lowering_platforms=(_PLATFORMS[ctx.platform],))
    tree = jax.tree_util.tree_structure(lowered.out_info)
    # Another MLIR context made it: carry it over as text with debug locations dropped.
    module = ir.Module.parse(str(lowered.compiler_ir("stablehlo")))
    prefix = f"{getattr(fn, '__name__', 'jax')}_{len(ctx.functions)}"
    return _merge(ctx.module, module, prefix), tree


def _merge(into: ir.Module, module: ir.Module, prefix: str) -> str:
    """Move a module's functions into another one under fresh private names; returns main's."""
    functions = [op for op in module.body.operations if isinstance(op, func.FuncOp)]
    for op in functions:
        old = op.name.value
        new = f"{prefix}_{old}"
        ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
        ir.SymbolTable.set_symbol_name(op, new)
        ir.SymbolTable.set_visibility(op, "private")
        for attribute in ("arg_attrs", "res_attrs"):
            if attribute in op.attributes:
                del op.attributes[attribute]
    for op in functions:
        into.body.append(op)
    return f"{prefix}_main"


def _numpy_dtype(x: Value) -> np.dtype:
    name = str(dtype_of(x)).removeprefix("torch.")
    return jax.numpy.dtype(name)
