"""A chain of many small layers: no function of ours runs more often than in proportion to it."""

import collections
import gc
import pathlib
import sys

import pytest
import torch
from torch import nn

import xla_dynamo
from tests.compiling import compiled_anew, watched
from xla_dynamo.graphs import output_views
from xla_dynamo.programs.program import Parameter

PACKAGE = str(pathlib.Path(xla_dynamo.__file__).parent)


def calls_of_ours(f):
    """How often each function of the package is called while f runs, by its place."""
    counts = collections.Counter()

    def count(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            counts[code.co_filename.removeprefix(PACKAGE), code.co_firstlineno, code.co_name] += 1

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what it calls would come at any time
    sys.setprofile(count)
    try:
        f()
    finally:
        sys.setprofile(before)
        gc.enable()
    return counts


def trained(layer, count):
    run = compiled_anew(nn.Sequential(*[layer() for _ in range(count)]))
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(3):
        run(x).sum().backward()


def whole_step(layer, count):
    model = nn.Sequential(*[layer() for _ in range(count)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = xla_dynamo.train_step(model, lambda model, x: model(x).square().mean(), optimizer)
    for _ in range(2):
        step(torch.randn(4, 8))


def viewed(layer, count):
    """Half of the views of views are results."""

    def f(x):
        x, views = x * 2, []
        for number in range(count):
            x = x.view(8, 4) if number % 2 else x.view(4, 8)
            views.append(x)
        return views[::2]

    with torch.no_grad():
        compiled_anew(f)(torch.randn(4, 8))


CHAINS = {
    "linear": (trained, lambda: nn.Linear(8, 8)),
    "whole step": (whole_step, lambda: nn.Linear(8, 8)),
    "views": (viewed, None),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_calls_grow_with_the_layers(chain, cold):
    """From n to 2n layers as many calls are added as from 2n to 3n."""
    run, layer = CHAINS[chain]
    run(layer, 4)  # what is looked up once in a process
    first, second, third = (calls_of_ours(lambda n=n: run(layer, n)) for n in (4, 8, 12))
    added = {at: (second[at] - first[at], third[at] - second[at]) for at in third}
    more = {at: grew for at, grew in added.items() if grew[1] > grew[0]}
    assert not more


def test_whose_memory_views_of_views_are_in_is_looked_up_once(monkeypatch):
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(50):
        nodes.append(graph.call_function(torch.ops.aten.t.default, (nodes[-1],)))
    asked = []
    step = output_views._viewed
    monkeypatch.setattr(output_views, "_viewed", lambda node: asked.append(node) or step(node))
    memories = output_views.Memories()
    assert {memories.of(node) for node in reversed(nodes)} == {nodes[0]}
    assert len(asked) == len(nodes)


def test_a_backward_reads_parameters_and_no_views_of_them():
    """They are recognized by their addresses; a view would be another tensor at each call."""
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    run, built = watched(model)
    x = torch.randn(4, 8)
    for _ in range(3):
        run(x).sum().backward()
    forward, backward = (event.program for event in built)
    assert not any(output.replay for output in forward.outputs)
    assert len(backward.of(Parameter)) == 3  # the first layer's weight has nothing behind it
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, 3 * gradient)


def test_parameters_with_other_memory_are_seen_by_the_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    run = compiled_anew(model)
    x = torch.randn(4, 8)
    for _ in range(3):
        run(x).sum().backward()
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter)
            parameter.grad = None
    run(x).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    torch.testing.assert_close(found, list(expected))
