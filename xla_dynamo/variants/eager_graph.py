"""Run a whole ATen graph in eager torch, while its executable is being compiled."""

from typing import Any

import torch

from xla_dynamo.calls.calls import Call
from xla_dynamo.graphs.nodes import run_and_save_rng_state, run_with_rng_state
from xla_dynamo.graphs.request import Request
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_private import is_view

# A compiled backward draws from a key where eager torch saves the state of its generator.
_STATES = (run_and_save_rng_state, run_with_rng_state)


def eager_call(gm: torch.fx.GraphModule, request: Request, device: torch.device) -> Call | None:
    """The call that runs a graph by torch's own kernels; None where torch cannot.

    Random numbers are then eager's, drawn with torch's generator. The graph is counted as
    "EagerWhileCompiling" at each call.
    """
    if request.placement is not None or device.type not in ("cpu", "cuda"):
        return None  # its tensors have no memory that torch's kernels could read
    if any(gm.graph.find_nodes(op="call_function", target=op) for op in _STATES):
        return None

    def call(args: list[Any]) -> list[Any]:
        metrics.increment("EagerWhileCompiling")
        given = list(args)
        args.clear()
        with torch.no_grad():
            results = gm.forward(*given)
        return [_result(r, i in request.views_of_inputs) for i, r in enumerate(results)]

    return call


def _result(value: Any, is_view_of_input: bool) -> Any:
    """A result as a compiled call gives it: unless eager's is one, no view for autograd."""
    if isinstance(value, torch.Tensor) and is_view(value) and not is_view_of_input:
        return value.detach()
    return value
