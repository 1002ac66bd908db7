"""Functions of JAX that are made anew for each call do not add up, and are there while needed."""

import collections
import gc

import pytest
import torch

from tests.compiling import compiled_whole
from xla_dynamo.jax import call_jax, flat_functions


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(flat_functions, "_MOST", 4)
    monkeypatch.setattr(flat_functions, "_latest", collections.OrderedDict())


def made_anew(number):
    return lambda x: x * number


@pytest.mark.usefixtures("few")
def test_functions_of_eager_calls_go():
    gc.collect()
    before = set(flat_functions._by_key)
    for number in range(20):
        y = call_jax(made_anew(number), torch.ones(2))
        assert y.tolist() == [number, number]
    gc.collect()
    assert len(flat_functions._latest) == 4
    assert len(set(flat_functions._by_key) - before) <= 4


@pytest.mark.usefixtures("few")
def test_a_gradient_that_comes_late():
    x = torch.ones(2, requires_grad=True)
    y = call_jax(lambda x: x**3, x)
    for number in range(10):
        call_jax(made_anew(number), torch.ones(2))
    gc.collect()
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    for number in range(10):
        call_jax(made_anew(number), torch.ones(2))
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.tolist(), second.tolist()) == ([3.0, 3.0], [6.0, 6.0])


@pytest.mark.usefixtures("few")
def test_functions_in_a_graph_stay(cold):
    function = made_anew(3)
    run = compiled_whole(lambda x: call_jax(function, x), dynamic=True)
    x = torch.ones(2, requires_grad=True)
    run(x)
    for number in range(10):
        call_jax(made_anew(number), torch.ones(2))
    gc.collect()
    x = torch.ones(5, requires_grad=True)
    y = run(x)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([3.0] * 5, [3.0] * 5)


@pytest.mark.usefixtures("few")
def test_one_that_comes_again_is_the_same():
    function = made_anew(2)
    first = flat_functions.register(function)
    for number in range(3):
        flat_functions.register(made_anew(number))
        assert flat_functions.register(function) is first
    with pytest.raises(TypeError, match="hash"):
        flat_functions.register([])
