"""Refuse tensors that XLA cannot represent, before any work is done."""

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch

from xla_dynamo.errors import UnsupportedDtype, UnsupportedTensor
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.graphs.wrappers import plain_tensors
from xla_dynamo.lowerings.builders.dtypes import SUPPORTED_DTYPES
from xla_dynamo.torch_private import source_name


def _only_indexes(node: torch.fx.Node) -> bool:
    """Whether an input is an index wherever a graph of Dynamo's reads it, or is returned."""

    def is_index(user: torch.fx.Node) -> bool:
        if user.op == "output":
            return True
        if user.target not in (operator.getitem, operator.setitem, "__getitem__", "__setitem__"):
            return False
        return node not in (user.args[0], *user.args[2:])

    return all(map(is_index, node.users))


def check_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], of_host: Collection[int] = ()
) -> None:
    """Check layout, dtype and device of every tensor that enters a graph.

    AOTAutograd takes wrapper subclasses apart, so their inner tensors are checked. The inputs
    `of_host`, by number, may be on the CPU wherever the others are.

    Raises:
        UnsupportedTensor: a tensor is sparse or quantized, or the tensors are on several devices
            (0-d CPU tensors may stand beside tensors of another device, as in eager, and indices
            on the CPU beside tensors of the 'xla' device).
        UnsupportedDtype: StableHLO has no type for a tensor's dtype.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    devices: dict[torch.device, list[torch.fx.Node]] = {}
    for index, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        user, name = next(iter(node.users), node), source_name(node)
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
                devices.setdefault(tensor.device, []).append(node)
    host = torch.device("cpu")
    if any(d.type == "xla" for d in devices) and all(map(_only_indexes, devices.get(host, ()))):
        devices.pop(host, None)  # as in eager, indices of the device's tensors may be on the host
    if len(devices) > 1:
        listed = ", ".join(
            f"{source_name(nodes[0])} on {device}" for device, nodes in devices.items()
        )
        other = list(devices.values())[1][0]
        user = next(iter(other.users), other)
        raise UnsupportedTensor(
            f"inputs of one compiled graph are on several devices ({listed}); move them to one"
            f"{describe(user)}"
        )
