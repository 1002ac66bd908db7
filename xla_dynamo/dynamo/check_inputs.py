"""Refuse tensors that XLA cannot represent, before any work is done."""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from xla_dynamo.errors import UnsupportedDtype, UnsupportedTensor
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.graphs.wrappers import plain_tensors
from xla_dynamo.lowerings.builders.dtypes import SUPPORTED_DTYPES


def _name(node: torch.fx.Node) -> str:
    source = getattr(node, "_dynamo_source", None)
    return source.name if source is not None and isinstance(source.name, str) else node.name


def check_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], of_host: Collection[int] = ()
) -> None:
    """Check layout, dtype and device of every tensor that enters a graph.

    AOTAutograd takes wrapper subclasses apart, so their inner tensors are checked. The inputs
    `of_host`, by number, may be on the CPU wherever the others are.

    Raises:
        UnsupportedTensor: a tensor is sparse or quantized, or the tensors are on several devices
            (0-d CPU tensors may stand beside tensors of another device, as in eager).
        UnsupportedDtype: StableHLO has no type for a tensor's dtype.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    devices: dict[torch.device, torch.fx.Node] = {}
    for index, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        user, name = next(iter(node.users), node), _name(node)
        for tensor in plain_tensors(value):
            if tensor.is_quantized:
                raise UnsupportedTensor(
                    f"input {name} is quantized ({tensor.dtype}); call .dequantize() on it first"
                    f"{describe(user)}"
                )
            if tensor.layout is not torch.strided:
                raise UnsupportedTensor(
                    f"input {name} has layout {tensor.layout}; call .to_dense() on it first"
                    f"{describe(user)}"
                )
            if tensor.dtype not in SUPPORTED_DTYPES:
                raise UnsupportedDtype(
                    f"input {name} has dtype {tensor.dtype}, which StableHLO has no type for; "
                    f"cast it first{describe(user)}"
                )
            if index not in of_host and (tensor.ndim or tensor.device.type != "cpu"):
                devices.setdefault(tensor.device, node)
    if len(devices) > 1:
        listed = ", ".join(f"{_name(node)} on {device}" for device, node in devices.items())
        user = next(iter(list(devices.values())[1].users), list(devices.values())[1])
        raise UnsupportedTensor(
            f"inputs of one compiled graph are on several devices ({listed}); move them to one"
            f"{describe(user)}"
        )
