"""Keep in-place changes of 0-d float64 tensors, which Dynamo drops when it traces again."""

from collections.abc import Callable
from typing import TypeVar

import torch

from xla_dynamo.torch_private import TensorifyScalarRestartAnalysis, TensorifyState

T = TypeVar("T")


def compile_keeping_changes(gm: torch.fx.GraphModule, compile_: Callable[[], T]) -> T:
    """Run `compile_`, which hands Dynamo's graph to AOTAutograd, without losing a change in gm.

    Dynamo takes a 0-d float64 input on the CPU for a Python number that it may have to trace anew
    as a constant. AOTAutograd asks for it by an exception, and Dynamo then removes every node that
    has no users and the type of such an input, `total.add_(x)` too (torch 2.13, any backend). So
    where the graph has one, the exception stays here: asked a second time, AOTAutograd goes on.
    """
    if not any(map(_is_lone_change, gm.graph.nodes)):
        return compile_()
    before = set(TensorifyState.force_specializations)
    try:
        return compile_()
    except TensorifyScalarRestartAnalysis:
        return compile_()
    finally:
        TensorifyState.force_specializations &= before


def _is_lone_change(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    if node.op not in ("call_method", "call_function") or not isinstance(value, torch.Tensor):
        return False
    return not node.users and value.dim() == 0 and value.dtype == torch.float64
