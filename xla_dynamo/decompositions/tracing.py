"""Trace functions of torch to ATen graphs, with the decompositions that AOTAutograd is given."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.graphs.sizes import fake_like
from xla_dynamo.torch_patches import tracing
from xla_dynamo.torch_private import FakeTensorMode


def traced(function: Callable[..., Any], fakes: Sequence[Any]) -> torch.fx.GraphModule:
    """The ATen graph of a function of tensors, decomposed as AOTAutograd's are.

    Args:
        function: a function of torch.
        fakes: fake tensors of static sizes like those it is to be called with.
    """
    trace = make_fx(torch.func.functionalize(function), decomposition_table=decompositions())
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with tracing(), mode, torch.no_grad():
        return trace(*map(fake_like, fakes))
