"""Random draws of a checkpointed region: their key is saved, and the backward draws from it again.

Torch saves the state of its generator for this, a tensor of bytes. Here the first of these bytes
are the key, which determines the numbers as well as the state would.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Value,
    cast,
    concatenate,
    full,
    full_like,
    reshape,
    slice_dim,
)
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.table import Context, find_refusal, find_rule, lowers, refuses

_KEY_BYTES = 16


def _state_of_key(key: Value, size: int) -> Value:
    words = hlo.bitcast_convert(tensor_type([2, 8], torch.uint8), key)
    rest = full([size - _KEY_BYTES], 0, torch.uint8)
    return concatenate([reshape(words, [_KEY_BYTES]), rest], 0)


def _key_of_state(state: Value) -> Value:
    """The key by its halves: XLA gets a bitcast of a bitcast between three widths wrong."""
    quarters = reshape(slice_dim(state, 0, 0, _KEY_BYTES), [2, 2, 4])
    halves = cast(hlo.bitcast_convert(tensor_type([2, 2], torch.uint32), quarters), torch.uint64)
    low, high = (reshape(slice_dim(halves, 1, i, i + 1), [2]) for i in range(2))
    return hlo.or_(low, hlo.shift_left(high, full_like(high, 32)))


def _keys(first: Value) -> Callable[[], Value]:
    """All that one operator draws from: the key, and others that it alone decides."""
    count = 0

    def next_key() -> Value:
        nonlocal count
        # Other keys of a program count its draws: far fewer than 2**32.
        step = concatenate([full([1], 0, torch.uint64), full([1], count << 32, torch.uint64)], 0)
        count += 1
        return hlo.add(first, step)

    return next_key


def _draw(ctx: Context, key: Value, out: Any, operands: Any, op: Any, *args: Any, **kw: Any) -> Any:
    rule = find_rule(op)
    assert rule is not None, "refused below"
    own = dataclasses.replace(ctx, out=out, operands=operands, random_key=_keys(key))
    return rule(own, *args, **kw)


@lowers("run_and_save_rng_state")
def run_and_save_rng_state(ctx: Context, op: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    state, out = ctx.out
    key = ctx.random_key()
    drawn = _draw(ctx, key, out, ctx.operands[1:], op, *args, **kwargs)
    return _state_of_key(key, state.shape[0]), drawn


@lowers("run_with_rng_state")
def run_with_rng_state(ctx: Context, state: Value, op: Any, *args: Any, **kwargs: Any) -> Any:
    key = _key_of_state(state)
    return _draw(ctx, key, ctx.out, ctx.operands[2:], op, *args, **kwargs)


def _refusal(op: Any, *args: Any, **kwargs: Any) -> str | None:
    if find_rule(op) is None:
        return "no lowering"
    refusal = find_refusal(op)
    return refusal(*args, **kwargs) if refusal else None


@refuses("run_and_save_rng_state")
def _refuses_to_save(op: Any, *args: Any, **kwargs: Any) -> str | None:
    return _refusal(op, *args, **kwargs)


@refuses("run_with_rng_state")
def _refuses_to_replay(state: Any, op: Any, *args: Any, **kwargs: Any) -> str | None:
    return _refusal(op, *args, **kwargs)
