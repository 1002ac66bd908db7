"""Recurrent layers, for the cases in which torch's decompositions of them are wrong.

Dynamo leaves them to eager unless `torch._dynamo.config.allow_rnn` is set; `train_step` sets it.
"""

from typing import Any

import torch

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.torch_private import pytree, set_mkldnn

_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def prepare_recurrent_layers(gm: torch.fx.GraphModule) -> None:
    """Make the recurrent networks of Dynamo's graph ones that can be traced.

    Raises:
        UnsupportedOperator: one is to drop something between its layers. Torch's decomposition
            would not: `_rnn_helper` of torch 2.13 compares the layers wrongly.
    """
    for part in gm.modules():
        if isinstance(part, torch.fx.GraphModule):
            changed = False
            for node in part.graph.nodes:
                if node.op == "call_function" and node.target in _RECURRENT:
                    _check_dropout(node)
                    if node.target is torch.lstm:
                        node.target, changed = lstm, True
            if changed:
                part.recompile()


def _check_dropout(node: torch.fx.Node) -> None:
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


def lstm(*args: Any) -> Any:
    """`torch.lstm`, in operators that have a gradient wherever one may be asked for.

    In float32 torch takes an LSTM apart into oneDNN's layers. A compiled forward runs without
    gradients, and then these keep nothing for the layer's backward.
    """
    tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        return torch.lstm(*args)
    enabled = set_mkldnn(False)
    try:
        return torch.lstm(*args)
    finally:
        set_mkldnn(enabled)
