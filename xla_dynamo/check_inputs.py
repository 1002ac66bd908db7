"""Refuse, before any work is done, tensors that XLA has no form for and what torch gets wrong."""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.errors import UnsupportedDtype, UnsupportedOperator, UnsupportedTensor
from xla_dynamo.lowerings.dtypes import SUPPORTED_DTYPES
from xla_dynamo.source_lines import describe

_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


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


def check_recurrent_dropout(gm: torch.fx.GraphModule) -> None:
    """Check that no recurrent network is to drop anything between its layers.

    Torch's decomposition would not: `_rnn_helper` of torch 2.13 compares the layers wrongly. Dynamo
    leaves recurrent networks to eager unless `torch._dynamo.config.allow_rnn` is set.

    Raises:
        UnsupportedOperator: one is.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in _RECURRENT:
            continue
        # (..., has_biases, num_layers, dropout, train, bidirectional), and batch_first if unpacked
        flag = next(i for i, argument in enumerate(node.args) if isinstance(argument, bool))
        layers, dropout, train = node.args[flag + 1 : flag + 4]
        if train and dropout and layers > 1:
            raise UnsupportedOperator(
                f"{node.target.__name__} with dropout={dropout} between its layers: torch's "
                f"decomposition leaves the dropout out{describe(node)}\n"
                "  stack single layers with nn.Dropout between them, or (but for train_step) leave "
                "torch._dynamo.config.allow_rnn at False: it runs in eager torch then"
            )
