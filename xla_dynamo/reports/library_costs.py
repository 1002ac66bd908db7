"""The floating-point operations of a call of a library: by its arrays, else by torch's formula."""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from xla_dynamo.graphs.node_notes import NodeNote
from xla_dynamo.reports.hlo_text import Array, Instruction

_MOVING = ("weight_layout",)
_FEATURES = re.compile(r'"output_feature_dim": ?"(\d+)"')


def moves_only(one: Instruction) -> bool:
    """Whether a call computes nothing: it brings weights into another layout."""
    return kernel_of(one) in _MOVING


def kernel_of(one: Instruction) -> str:
    """The name of our kernel that a call runs; "" if it runs none."""
    return one.attribute("kernel").partition(":")[0]


def library_flops(
    one: Instruction,
    given: Sequence[Array],
    unpacked: Array | None,
    note: NodeNote | None,
    shares: int,
) -> float:
    """What one run of a call computes on a device.

    Products and convolutions tell by their arrays, which are right for padded sizes and for the
    part of one device as well. Of attention the arrays may have their heads in two places, so
    torch's formula (`torch.utils.flop_counter`) counts where all sizes are known.

    Args:
        one: the call.
        given: its operands.
        unpacked: the weights of a convolution, as the model has them; None if they are not known.
        note: what is known of the graph's node; None if it is not known.
        shares: how many calls and devices share what the node computes.
    """
    if not one.arrays or moves_only(one):
        return 0.0
    result = one.arrays[0]
    kernel, target = kernel_of(one), one.attribute("custom_call_target")
    counted: float | None = None
    if kernel == "weight_gradient" and len(given) > 1:
        weights = result.sizes[-len(given[1].sizes) + 1 :]  # behind the shares: without outputs
        counted = 2.0 * given[1].elements * math.prod(weights)
    elif target == "__onednn$convolution":
        counted = _of_filter(one, given, result)
    elif kernel == "packed_convolution" and unpacked is not None:
        counted = 2.0 * result.elements * math.prod(unpacked.sizes[1:])
    elif target == "__onednn$matmul" or (kernel.endswith("product") and "grouped" not in kernel):
        counted = _of_product(given, result)
    if counted is None:
        counted = _by_formula(note, shares)
    if counted is None and "attention" in kernel and "paged" not in kernel:
        counted = _of_attention([a for a in given if len(a.sizes) == 4], one.arrays, kernel)
    return counted or 0.0


def _of_product(given: Sequence[Array], result: Array) -> float | None:
    left = next((a for a in given if len(a.sizes) > 1), None)
    if left is None or len(result.sizes) < 2 or not result.elements:
        return None
    rows = result.sizes[-2]
    if rows not in left.sizes[-2:]:
        return None
    return 2.0 * result.elements * (left.sizes[-1] * left.sizes[-2] // rows)


def _of_filter(one: Instruction, given: Sequence[Array], result: Array) -> float | None:
    features = _FEATURES.search(one.text)
    if features is None or len(given) < 2:
        return None
    weights = given[1]
    return 2.0 * result.elements * weights.elements / max(weights.sizes[int(features[1])], 1)


def _by_formula(note: NodeNote | None, shares: int) -> float | None:
    if note is None or note.operator is None or _is_symbolic(note.shapes):
        return None
    packet = getattr(note.operator, "overloadpacket", note.operator)
    formula = flop_registry.get(packet)
    if formula is None and "flash_attention_for_cpu" in str(packet):
        formula = sdpa_backward_flop if str(packet).endswith("backward") else sdpa_flop
    if formula is None:
        return None
    given, result = note.shapes
    try:
        return float(formula(*given, out_val=result)) / max(shares, 1)
    except (TypeError, ValueError, AssertionError, IndexError, AttributeError):
        return None  # a form of the call that it does not know


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_symbolic, value))
    return isinstance(value, torch.SymInt)


def _of_attention(given: Sequence[Array], results: Sequence[Array], kernel: str) -> float | None:
    """Of attention whose result is (batch, queries, heads, features), and its gradients."""
    backward = kernel.endswith("gradients")
    first = 1 if backward else 0  # behind the gradient of the output
    if len(given) < first + 3 or len(results[0].sizes) != 4:
        return None
    query, key, value = given[first : first + 3]
    heads = results[0].sizes[2]
    keys = key.sizes[2] if key.sizes[1] == heads else key.sizes[1]
    pairs = 2.0 * math.prod(query.sizes[:3]) * keys
    queries, values = query.sizes[3], value.sizes[3]
    return pairs * (3 * queries + 2 * values if backward else queries + values)
