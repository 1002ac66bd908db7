"""`resize_`, which Dynamo does not trace, in graphs that others trace: out= of another size."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.execution.compile_graph import compile_graph
from xla_dynamo.graphs.request import Request
from xla_dynamo.options import Options


def graph_of(f, x):
    return make_fx(torch.func.functionalize(f), tracing_mode="fake")(x)


@pytest.mark.parametrize("size", [(3, 4), (4, 3), (12,), (2, 3), (1, 2), (0, 5), (5, 6)])
def test_contiguous(size):
    x = torch.arange(12.0).view(3, 4)
    graph = graph_of(lambda x: ((x * 2).resize_(size),), x)
    (resized,) = compile_graph(graph, [x]).call([x])
    assert resized.shape == size
    kept = min(12, resized.numel())
    assert torch.equal(resized.flatten()[:kept], 2 * x.flatten()[:kept])


def test_a_view_with_gaps():
    x = torch.arange(12.0).view(3, 4)
    graph = graph_of(lambda x: ((x.t() * 2).resize_(2, 2),), x)
    with pytest.raises(UnsupportedOperator, match="resize"):
        compile_graph(graph, [x], Request(Options(fallback="error")))
    (resized,) = compile_graph(graph, [x]).call([x])
    assert torch.equal(resized, 2 * torch.arange(4.0).view(2, 2))
