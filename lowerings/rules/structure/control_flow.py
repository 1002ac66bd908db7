"""Branches and loops on values: cond, while_loop, scan, map.

torch hands them over as higher-order operators whose bodies are graphs. Each body becomes a
StableHLO region, so a loop of any length is one operation of the program.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value, is_value, shape_of
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.table import Context, lowers

Body: TypeAlias = torch.fx.GraphModule


@lowers("cond")
def cond(
    ctx: Context, pred: Value | bool, true_fn: Body, false_fn: Body, operands: Sequence[Any] = ()
) -> Sequence[Any]:
    """One of two branches; a predicate of sizes is known here, and the other one is left out."""
    fakes = ctx.operands[3] if len(ctx.operands) > 3 else ()
    if not is_value(pred):
        return _typed(ctx.inline(true_fn if pred else false_fn, operands, fakes), ctx.out)
    promised = [t for t in ctx.out if t is not None]  # None: a gradient that nobody asked for
    op = hlo.IfOp(
        [tensor_type(t.shape, t.dtype) for t in promised],
        build.reshape(build.cast(pred, torch.bool), ()),
    )
    for region, branch in zip(op.regions, (true_fn, false_fn), strict=True):

        def results(branch: Body = branch) -> list[Value]:
            return [r for r in _typed(ctx.inline(branch, operands, fakes), ctx.out) if is_value(r)]

        build.region(region, [], results)
    given = iter(op.results)
    return [None if t is None else next(given) for t in ctx.out]


@lowers("while_loop")
def while_loop(
    ctx: Context,
    cond_fn: Body,
    body_fn: Body,
    carried: Sequence[Value],
    additional: Sequence[Any] = (),
) -> Sequence[Value]:
    """As long as cond_fn is true: carried = body_fn(*carried, *additional)."""
    fakes = [*ctx.operands[2], *(ctx.operands[3] if len(ctx.operands) > 3 else ())]

    def condition(step: Value, *values: Value) -> Value:
        (outcome,) = ctx.inline(cond_fn, [*values, *additional], fakes, step=step)
        if not is_value(outcome):
            return build.full((), bool(outcome), torch.bool)
        return build.reshape(build.cast(outcome, torch.bool), ())

    def body(step: Value, *values: Value) -> Sequence[Value]:
        results = ctx.inline(body_fn, [*values, *additional], fakes, step=step)
        return [_next(step), *_typed(results, ctx.out)]

    start = build.scalar(0, torch.int64)
    return build.while_loop([start, *_typed(carried, ctx.out)], condition, body)[1:]


@lowers("scan")
def scan(
    ctx: Context,
    combine_fn: Body,
    init: Sequence[Value],
    xs: Sequence[Value],
    additional: Sequence[Any] = (),
) -> Sequence[Value]:
    """carry, y = combine_fn(carry, x) for each x along dimension 0; the last carry, and all y."""
    fakes = ctx.operands
    return _steps(ctx, combine_fn, list(init), xs, additional, fakes[1], fakes[2], fakes[3:])


@lowers("map_impl")
def map_impl(
    ctx: Context, f: Body, xs: Sequence[Value], additional: Sequence[Any] = ()
) -> Sequence[Value]:
    """f(x) for each x along dimension 0, stacked."""
    return _steps(ctx, f, [], xs, additional, (), ctx.operands[1], ctx.operands[2:])


def _steps(
    ctx: Context,
    f: Body,
    carry: list[Value],
    xs: Sequence[Value],
    additional: Sequence[Any],
    fake_carry: Sequence[Any],
    fake_xs: Sequence[torch.Tensor],
    fake_additional: Sequence[Sequence[Any]],
) -> list[Value]:
    """A loop along dimension 0 that writes what each step gives into a row of the results."""
    length = shape_of(xs[0])[0]
    fakes = [*fake_carry, *(x[0] for x in fake_xs)] if length else []
    fakes += [a for group in fake_additional for a in group]
    carried, stacked = ctx.out[: len(carry)], ctx.out[len(carry) :]
    rows = [build.full(t.shape, 0, t.dtype) for t in stacked]
    if not length:
        return [*_typed(carry, carried), *rows]

    def condition(step: Value, *_: Value) -> Value:
        return build.compare(step, build.scalar(length, torch.int64), "LT")

    def body(step: Value, *values: Value) -> list[Value]:
        now, before = values[: len(carry)], values[len(carry) :]
        given = [_row(x, step) for x in xs]
        results = ctx.inline(f, [*now, *given, *additional], fakes, step=step)
        after = _typed(results[: len(carry)], carried)
        made = _typed(results[len(carry) :], [t[0] for t in stacked])
        written = [_set_row(r, step, y) for r, y in zip(before, made, strict=True)]
        return [_next(step), *after, *written]

    start = build.scalar(0, torch.int64)
    loop = [start, *_typed(carry, carried), *rows]
    return build.while_loop(loop, condition, body)[1:]


def _next(step: Value) -> Value:
    return hlo.add(step, build.scalar(1, torch.int64))


def _row(x: Value, index: Value) -> Value:
    return build.reshape(build.slice_at(x, 0, index), shape_of(x)[1:])


def _set_row(x: Value, index: Value, row: Value) -> Value:
    return build.update_slice(x, build.expand_dims(row, 0), 0, index)


def _typed(values: Sequence[Any], promised: Sequence[torch.Tensor | None]) -> list[Any]:
    """The values, each of the promised shape and dtype: a body may give a number."""
    return [
        x if is_value(x) or p is None else build.full(p.shape, x, p.dtype)
        for x, p in zip(values, promised, strict=True)
    ]
