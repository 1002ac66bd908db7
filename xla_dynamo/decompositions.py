"""Which ATen operators torch rewrites into simpler ones before the table sees them."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

aten = torch.ops.aten

# Left whole, because one rule says it better than the pieces would.
_KEPT: dict[Any, str] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (
        "torch's decomposition returns another second result than its backward reads: wrong "
        "gradients"
    ),
}


@functools.cache
def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """torch's core ATen decompositions less the ones the table does better."""
    table = dict(core_aten_decompositions())
    for op in _KEPT:
        table.pop(op, None)
    return table
