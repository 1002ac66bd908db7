"""`options={"freeze": True}`: values are computed from parameters once, and who shares them."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import xla_dynamo
from tests.compiling import assert_matches_eager
from tests.freezing import Scaled, add_one, check_inference, frozen
from xla_dynamo.execution.compiled_graph import CompiledGraph
from xla_dynamo.options import Options


def test_values_are_computed_once(frozen_runs):
    model = Scaled()
    run = frozen(model)
    for _ in range(3):
        check_inference(run, torch.randn(3, 5))
    assert len(frozen_runs) == 1


def test_results_belong_to_the_caller():
    model, x = Scaled(), torch.randn(3, 5)

    def both(x):
        return model(x), model.weight.exp()

    run = frozen(both)
    with torch.no_grad():
        run(x)[1].zero_()
        assert_matches_eager(run, x)


def test_layers_share_a_program_but_no_values(frozen_runs):
    layers = nn.ModuleList(Scaled() for _ in range(3))
    for layer in layers:
        layer.compile(backend="openxla", options={"freeze": True})
    eager = [Scaled() for _ in layers]
    for layer, twin in zip(layers, eager, strict=True):
        twin.load_state_dict(layer.state_dict())
    x = torch.randn(3, 5)
    for _ in range(2):
        for layer, twin in zip(layers, eager, strict=True):
            check_inference(layer, x, eager=twin)
    assert len(frozen_runs) == 3
    assert len(set(frozen_runs)) == 1


def test_sizes_share_values(frozen_runs, monkeypatch):
    graphs = []
    compile_ = CompiledGraph._compile

    def noted(self, *args):
        graphs.append(self)
        return compile_(self, *args)

    monkeypatch.setattr(CompiledGraph, "_compile", noted)
    model = Scaled()
    run = frozen(model, dynamic=True)
    for n in (2, 3, 4):
        check_inference(run, torch.randn(n, 5))
    assert len(graphs) == 3  # executables
    assert len(frozen_runs) == 1
    add_one(model)
    for n in (2, 3, 4):
        check_inference(run, torch.randn(n, 5))
    assert len(frozen_runs) == 2


def test_sizes_may_need_more_values():
    table = nn.Parameter(torch.randn(9, 4))

    def f(x):
        return x + table[: x.shape[0]].exp() + table.sin().sum(0)

    run = frozen(f, dynamic=True)
    for n in (2, 5, 2, 7, 5):
        check_inference(run, torch.randn(n, 4))
        with torch.no_grad():
            table.mul_(1.5)


def test_gradients_are_not_frozen(frozen_runs):
    model, x = Scaled(), torch.randn(3, 5)
    run = frozen(model)
    for _ in range(2):
        expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        found = torch.autograd.grad(run(x).sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected)
        add_one(model)
    assert not frozen_runs


def test_operators_in_eager_torch_between_frozen_parts():
    model, x = Scaled(), torch.randn(6, 5)

    def f(x):
        y = model(x)
        return (y[(y > 0).nonzero()[:, 0]] * model.weight.exp()).sum(0)

    check_inference(frozen(f), x)
    add_one(model)
    check_inference(frozen(f), x)


def test_values_go_with_the_parameters(frozen_runs):
    model = Scaled()
    run = frozen(model)
    check_inference(run, torch.randn(3, 5))
    (program,) = frozen_runs
    assert len(program._known) == 1
    first = weakref.ref(model.weight)
    model.weight = nn.Parameter(torch.randn(5))
    gc.collect()
    assert first() is None
    assert not program._known
    check_inference(run, torch.randn(3, 5))
    assert len(program._known) == 1


def test_threads():
    model, x = Scaled(), torch.randn(3, 5)
    run = frozen(model)
    with torch.no_grad():
        run(x)
    wrong = []

    def call():
        with torch.no_grad():
            wrong.extend(not torch.allclose(run(x), model(x)) for _ in range(50))

    for _ in range(3):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        add_one(model)
    assert len(wrong) == 600
    assert not any(wrong)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_the_option_is_a_boolean(value):
    with pytest.raises(xla_dynamo.OptionError, match="freeze"):
        Options.parse({"freeze": value})
