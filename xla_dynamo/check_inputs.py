"""Refuse, before any work is done, tensors that XLA has no form for."""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.errors import UnsupportedDtype, UnsupportedTensor
from xla_dynamo.lowerings.dtypes import SUPPORTED_DTYPES
from xla_dynamo.source_lines import describe


def _name(node: torch.fx.Node) -> str:
    source = getattr(node, "_dynamo_source", None)
    return source.name if source is not None and isinstance(source.name, str) else node.name


def check_inputs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Check layout, dtype and device of every tensor that enters a graph.

    Raises:
        UnsupportedTensor: a tensor is sparse or quantized, or the tensors are on several devices
            (0-d CPU tensors may stand beside tensors of another device, as in eager).
        UnsupportedDtype: StableHLO has no type for a tensor's dtype.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    devices: dict[torch.device, torch.fx.Node] = {}
    for node, value in zip(placeholders, example_inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        user = next(iter(node.users), node)
        if value.is_quantized:
            raise UnsupportedTensor(
                f"input {_name(node)} is quantized ({value.dtype}); call .dequantize() on it first"
                f"{describe(user)}"
            )
        if value.layout is not torch.strided:
            raise UnsupportedTensor(
                f"input {_name(node)} has layout {value.layout}; call .to_dense() on it first"
                f"{describe(user)}"
            )
        if value.dtype not in SUPPORTED_DTYPES:
            raise UnsupportedDtype(
                f"input {_name(node)} has dtype {value.dtype}, which StableHLO has no type for; "
                f"cast it first{describe(user)}"
            )
        if value.ndim or value.device.type != "cpu":
            devices.setdefault(value.device, node)
    if len(devices) > 1:
        listed = ", ".join(f"{_name(node)} on {device}" for device, node in devices.items())
        user = next(iter(list(devices.values())[1].users), list(devices.values())[1])
        raise UnsupportedTensor(
            f"inputs of one compiled graph are on several devices ({listed}); move them to one"
            f"{describe(user)}"
        )
