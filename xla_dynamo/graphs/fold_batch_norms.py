"""Fold batch norm into the weight and bias of the convolution before it, for frozen inference.

conv(x, w) normalized by the running statistics is conv(x, w * scale) + shift. Scale and shift
depend on parameters and buffers alone, so `freeze` computes them once.
"""

from typing import Any, TypeAlias

import torch

from xla_dynamo.torch_private import detect_fake_mode

Node: TypeAlias = torch.fx.Node
aten = torch.ops.aten
prims = torch.ops.prims

_NORMS = (
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_no_update.default,
)
_CASTS = (aten._to_copy.default, prims.convert_element_type.default)


def fold_batch_norms(gm: torch.fx.GraphModule, static_inputs: frozenset[int]) -> int:
    """Fold what can be folded in an inference graph; returns how many there were.

    Args:
        gm: an ATen graph, whose nodes carry fake values.
        static_inputs: the indices of its inputs that are parameters and buffers.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    frozen = {node for index, node in enumerate(placeholders) if index in static_inputs}
    for node in gm.graph.nodes:
        reads = node.all_input_nodes
        if node.op == "call_function" and reads and frozen.issuperset(reads):
            frozen.add(node)
    count = 0
    for target in _NORMS:
        for norm in gm.graph.find_nodes(op="call_function", target=target):
            if _folds(norm, frozen):
                _fold(norm)
                count += 1
    if count:
        gm.recompile()
    return count


def _folds(norm: Node, frozen: set[Node]) -> bool:
    """Whether a batch norm normalizes a convolution that nobody else reads."""
    x, *parameters, _, _ = norm.args
    if not isinstance(x, torch.fx.Node) or x.target is not aten.convolution.default:
        return False
    _, weight, bias, _, _, _, transposed, _, groups = x.args
    makes_one = all(user.args[1] == 0 for user in norm.users)
    known = {n for n in (weight, bias, *parameters) if isinstance(n, torch.fx.Node)} <= frozen
    in_order = not transposed or groups == 1  # or each group has channels of its own
    floats = x.meta["val"].dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    return len(x.users) == 1 and makes_one and known and in_order and floats


def _fold(norm: Node) -> None:
    """Write a convolution with another weight and bias in the place of both.

    Tracing `torch.nn.utils.fuse_conv_bn_weights` gives the same values, but takes five times as
    long as writing the nodes.
    """
    conv, scale_by, shift_by, mean, variance, _, eps = norm.args
    x, weight, bias, *window = conv.args  # type: ignore[union-attr]
    transposed = window[3]
    narrow = weight.meta["val"].dtype
    write = _Writer(norm)
    # Autocast rounds the weight; scaled in its own dtype and then rounded it is as exact.
    if weight.target in _CASTS:
        weight = weight.args[0]
    wide = torch.promote_types(weight.meta["val"].dtype, torch.float32)

    def cast(node: Node, dtype: torch.dtype) -> Node:
        if node.meta["val"].dtype is dtype:
            return node
        return write(prims.convert_element_type.default, node, dtype)

    scale = write(
        aten.rsqrt.default,
        write(aten.add.Tensor, cast(variance, wide), eps),  # type: ignore[arg-type]
    )
    if scale_by is not None:
        scale = write(aten.mul.Tensor, scale, cast(scale_by, wide))  # type: ignore[arg-type]
    shape = [1] * weight.meta["val"].ndim
    shape[int(transposed)] = -1
    turned = write(aten.view.default, scale, shape)
    scaled = write(aten.mul.Tensor, cast(weight, wide), turned)
    shift = write(aten.neg.default, cast(mean, wide))  # type: ignore[arg-type]
    if bias is not None:
        shift = write(aten.add.Tensor, shift, cast(bias, wide))
    shift = write(aten.mul.Tensor, shift, scale)
    if shift_by is not None:
        shift = write(aten.add.Tensor, shift, cast(shift_by, wide))  # type: ignore[arg-type]
    folded = write(conv.target, x, cast(scaled, narrow), cast(shift, narrow), *window)  # type: ignore[union-attr]
    folded.meta = {**conv.meta, "val": folded.meta["val"]}  # type: ignore[union-attr]
    for user in list(norm.users):
        user.replace_all_uses_with(cast(folded, user.meta["val"].dtype))
        norm.graph.erase_node(user)
    norm.graph.erase_node(norm)
    norm.graph.erase_node(conv)  # type: ignore[arg-type]


class _Writer:
    """Writes nodes with their fake values before a node, as if they came from its line."""

    def __init__(self, before: Node) -> None:
        self._before = before

    def __call__(self, op: Any, *args: Any) -> Node:
        graph = self._before.graph
        with graph.inserting_before(self._before):
            node = graph.call_function(op, args)
        node.meta = {**self._before.meta}
        values = torch.fx.map_arg(args, lambda n: n.meta["val"])
        mode = detect_fake_mode([n.meta["val"] for n in node.all_input_nodes])
        with mode, torch.no_grad():
            node.meta["val"] = op(*values)
        return node
