"""What a forward graph saves for its backward comes in strides of our choice.

Eager's strides are promised for what the user gets. A tensor that only the backward graph reads may
lie in memory as it was computed, such as an image with the channels last, and neither graph turns
it. AOTAutograd is told the strides, and compiles the backward for them.
"""

import collections
import functools
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jax.extend.mlir import ir

from xla_dynamo.execution.calls import Call
from xla_dynamo.lowerings.builders.strides import row_major
from xla_dynamo.lowerings.builders.values import source_of
from xla_dynamo.programs.layouts import Finish, InputLayout, input_layout, restrided
from xla_dynamo.programs.program import Output, Strides

# The note at inputs of a backward graph that come in other strides than were traced: a tensor that
# has them.
AS_SAVED = "as saved"


def choose_strides(
    body: ir.Block,
    outputs: Sequence[Output],
    saved: Collection[int],
    others: Sequence[Output],
    finishers: dict[int, Finish],
) -> Strides:
    """Have results that are transposes in the end come as what they are transposes of.

    Args:
        body: of the module's main function.
        outputs: of the graph.
        saved: which of them only the backward reads, by number.
        others: what else is made of the program's results.
        finishers: what is done to exported results, by the result's number; gets new ones.

    Returns:
        The strides of those outputs, by the output's number.
    """
    *_, last = body.operations
    uses = collections.Counter(output.result for output in (*outputs, *others))
    chosen = {}
    for number in saved:
        output = outputs[number]
        index = output.result
        if index is None or output.view or uses[index] > 1 or index in finishers:
            continue
        value = last.operands[index]
        source, turned = source_of(value)
        if source is value:
            continue
        inner = row_major(source.type.shape)
        size, stride = tuple(value.type.shape), tuple(inner[dim] for dim in turned)
        last.operands[index] = source
        finishers[index] = _restrider(size, stride)
        chosen[number] = stride
    return chosen


def _restrider(size: tuple[int, ...], stride: tuple[int, ...]) -> Finish:
    return lambda tensor: restrided(tensor, size, stride)


def note_saved(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Note at a backward graph's inputs which of them come in other strides than were traced."""
    for node, given in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        traced = node.meta["val"]
        if isinstance(given, torch.Tensor) and given is not traced:
            strides = given.stride()
            if all(type(n) is int for n in strides) and strides != traced.stride():
                node.meta[AS_SAVED] = given


def saved_layout(node: torch.fx.Node) -> InputLayout | None:
    """How an input of a backward graph enters its program, if it is so noted.

    A hook at saved tensors may have changed its strides since.
    """
    if AS_SAVED not in node.meta:
        return None
    order = input_layout(node.meta[AS_SAVED]).order
    return InputLayout(lambda tensor: tensor.permute(order).contiguous(), order)


def forget_saved(gm: torch.fx.GraphModule) -> Strides:
    """Take those notes away; the strides that were traced, by the input's number."""
    traced = {}
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if node.meta.pop(AS_SAVED, None) is not None:
            traced[index] = node.meta["val"].stride()
    return traced


def with_traced_strides(traced: Strides, call: Call) -> Call:
    """A call that brings inputs into the strides that were traced first."""

    @functools.wraps(call)
    def restore(args: list[Any]) -> list[Any]:
        for index, stride in traced.items():
            saved = args[index]
            args[index] = saved.new_empty_strided(saved.shape, stride).copy_(saved)
        return call(args)

    return restore if traced else call
