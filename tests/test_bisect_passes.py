"""`bisect_passes` names the run of a pass that makes a result wrong."""

import dataclasses

import pytest
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from torch import nn

import xla_dynamo
from tests.compiling import compiled_anew
from tests.lowerings.passes.rewriting import CPU
from tests.rewriting_passes import operations_named, sine_for_tanh
from xla_dynamo.errors import OptionError
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.passes import table
from xla_dynamo.lowerings.passes.registered import passes_for
from xla_dynamo.lowerings.passes.switches import Switches, session, switched

X = torch.linspace(-1, 1, 12).reshape(3, 4)
COUNTED = [p.name for p in passes_for(CPU) if not (p.is_needed or p.keeps_numbers)]


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x).relu().tanh())


def halved(module, target):
    """A wrong pass: the results of backward graphs alone, which have no tanh, are halved."""
    if operations_named(module, "stablehlo.tanh"):
        return
    main = main_of(module)
    *_, last = main.entry_block.operations
    with ir.InsertionPoint(last), ir.Location.unknown():
        for index, value in enumerate(last.operands):
            last.operands[index] = hlo.divide(value, hlo.add(value, value))


@pytest.mark.parametrize("place", ["put_channels_last", "split_reductions", None])
def test_a_wrong_pass_is_named(place):
    ours = ["put_channels_last", "choose_permutations", "split_reductions"]
    ours += ["move_as_integers", "materialize"]
    assert ours == COUNTED
    number = len(ours) if place is None else ours.index(place)
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1", before=place):
        found = xla_dynamo.bisect_passes(torch.tanh, [X])
    assert (found.guilty, found.number, found.total) == ("sine-1", number + 1, 6)
    assert (found.run.name, found.run.module, found.run.platform) == ("sine-1", 1, "cpu")
    text = str(found)
    assert f"the pass sine-1 makes the results wrong, run {number + 1} of 6, over module 1" in text
    assert "Tensor-likes are not close" in text
    assert "\n  limit=0: right" in text
    assert f"limit={number + 1}" in text


def test_the_number_is_the_limit_of_the_environment_variable(monkeypatch):
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1"):
        number = xla_dynamo.bisect_passes(torch.tanh, [X]).number
        for limit, expected in ((number - 1, X.tanh()), (number, X.sin())):
            monkeypatch.setenv("XLA_DYNAMO_PASSES", f"limit={limit}")
            torch.testing.assert_close(compiled_anew(torch.tanh)(X), expected)


def test_a_wrong_gradient_is_in_another_module():
    model = Layers()
    with xla_dynamo.register_pass(halved, identity="halved-1", after="materialize"):
        found = xla_dynamo.bisect_passes(model, [X])
    assert (found.guilty, found.run.module, found.total) == ("halved-1", 2, 12)
    assert found.number == 12
    assert all(p.grad is None for p in model.parameters())  # copies were trained


def test_behind_a_graph_break():
    def f(x):
        x = x * 2
        torch._dynamo.graph_break()
        return x.tanh()

    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1", before="put_channels_last"):
        found = xla_dynamo.bisect_passes(f, [X])
    assert (found.guilty, found.run.module, found.number, found.total) == ("sine-1", 2, 7, 12)


def test_a_pass_that_fails_is_as_wrong_as_one_that_computes_something_else():
    def failing(module, target):
        raise ValueError("no such thing")

    with xla_dynamo.register_pass(failing, identity="failing-1", after="choose_permutations"):
        found = xla_dynamo.bisect_passes(torch.tanh, [X])
    assert (found.guilty, found.number, found.total) == ("failing-1", 3, 3)
    assert "the pass failing-1 of" in found.difference
    assert "no such thing" in str(found)


def wrong_where(monkeypatch, name):
    """Have a pass of the table compute a sine for tanh besides."""

    def changed(given):
        if given.name != name:
            return given

        def rewrite(module, target):
            sine_for_tanh(module, target)
            return given.rewrite(module, target)

        rewrite.__name__ = name
        return dataclasses.replace(given, rewrite=rewrite)

    monkeypatch.setattr(table, "PASSES", tuple(map(changed, table.PASSES)))


@pytest.mark.parametrize("name", ["insert_barriers", "outline"])
def test_a_pass_that_the_limit_does_not_count(monkeypatch, name):
    wrong_where(monkeypatch, name)
    found = xla_dynamo.bisect_passes(torch.tanh, [X])
    assert (found.guilty, found.run, found.number) == (name, None, None)
    assert f"the pass {name} makes the results wrong\n" in str(found)
    assert f"limit=0,skip={name}: right" in str(found)


def test_no_pass_is_guilty_of_what_is_wrong_without_any(monkeypatch):
    wrong_where(monkeypatch, "call_packed")  # always runs, as a fault of a rule or of XLA's
    found = xla_dynamo.bisect_passes(torch.tanh, [X])
    assert (found.guilty, found.total) == (None, len(COUNTED))
    assert "wrong without any pass that can be left out: look at the rules" in str(found)


def test_results_that_are_right():
    found = xla_dynamo.bisect_passes(Layers(), [X])
    assert (found.guilty, found.difference, found.total) == (None, None, 2 * len(COUNTED))
    assert str(found).startswith("the results are eager's with all 10 runs of passes")


def test_tolerances_arguments_and_changes():
    """Each trial gets arguments as they were, of which none is changed at the end."""

    def f(x, *, y):
        x.add_(1)
        return {"a": x.tanh(), "b": (y, "text", x.shape[0])}

    x, y = X.clone(), X.clone().requires_grad_() * 2
    assert xla_dynamo.bisect_passes(f, [x], {"y": y}).difference is None
    torch.testing.assert_close(x, X, rtol=0, atol=0)
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1"):
        assert xla_dynamo.bisect_passes(f, [x], {"y": y}, rtol=9, atol=9).difference is None
        assert xla_dynamo.bisect_passes(f, [x], {"y": y}, rtol=0.01, atol=0.01).guilty == "sine-1"


def test_random_numbers_are_those_of_one_seed():
    before = torch.get_rng_state()
    options = {"rng": "torch"}
    found = xla_dynamo.bisect_passes(nn.Dropout(), [X], options=options)
    assert found.difference is None
    assert torch.equal(torch.get_rng_state(), before)


def test_what_was_compiled_before_stays():
    compiled = compiled_anew(torch.tanh)
    compiled(X)
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1"):
        assert xla_dynamo.bisect_passes(compiled, [X]).guilty == "sine-1"
    torch.testing.assert_close(compiled(X), X.tanh())


def test_bad_input():
    with pytest.raises(TypeError, match="needs a function or a module, not int"):
        xla_dynamo.bisect_passes(3)
    with pytest.raises(OptionError, match="unknown option"):
        xla_dynamo.bisect_passes(torch.tanh, [X], options={"nonsense": 1})
    with pytest.raises(ValueError, match="takes both rtol and atol"):
        xla_dynamo.bisect_passes(torch.tanh, [X], rtol=1e-3)
    with pytest.raises(TypeError, match="must be Tensor"):  # what eager says
        xla_dynamo.bisect_passes(torch.tanh, [3])
    with switched(Switches(limit=3)) as around:
        xla_dynamo.bisect_passes(torch.tanh, [X])
        assert session() is around
    assert around.runs == []
