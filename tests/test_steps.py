"""The steps of a call one by one: buffers in, buffers out."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import xla_dynamo


def test_the_steps_of_a_call_alone():
    """The results of one graph are the inputs of another, and no tensor is made between."""

    def graph(f):
        gm = make_fx(lambda x: (f(x),), tracing_mode="fake")(torch.ones(64, 64))
        return xla_dynamo.compile_graph(gm, [torch.ones(64, 64)])

    first, second = graph(torch.sin).steps, graph(torch.exp).steps
    x = torch.randn(64, 64)
    assert not first.donated
    buffers = first.supply([x], None)
    (between,) = first.execute(buffers)
    results = second.execute(between)
    (actual,) = second.export(results, [], None)
    torch.testing.assert_close(actual, x.sin().exp())
    assert results[0][0].unsafe_buffer_pointer() == actual.data_ptr()


def test_steps_that_depend_on_the_sizes_are_none():
    gm = make_fx(lambda x: (x + 1,), tracing_mode="symbolic")(torch.ones(3, 2))
    assert xla_dynamo.compile_graph(gm, [torch.ones(3, 2)]).steps is None


@pytest.mark.parametrize("x", [torch.ones(64, 64, dtype=torch.int32), torch.ones(4096)])
def test_buffers_of_another_kind_are_refused(x):
    """PJRT counts bytes alone, and would read them as it was compiled to."""
    gm = make_fx(lambda x: (x + 1,), tracing_mode="fake")(torch.ones(64, 64))
    steps = xla_dynamo.compile_graph(gm, [torch.ones(64, 64)]).steps
    buffers = steps.supply([x], None)
    with pytest.raises(xla_dynamo.ExecutionError, match="was given buffers"):
        steps.execute(buffers)
