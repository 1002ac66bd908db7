"""Passes that users register: where they run, what they may do, and how long they are there."""

import re
import threading

import jax
import numpy as np
import pytest
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from torch import nn

import xla_dynamo
from tests.compiling import compiled_anew
from tests.lowerings.passes.rewriting import CPU, GPU, parsed
from tests.rewriting_passes import cosine_for_tanh, operations_named, sine_for_tanh
from tests.test_errors import compile_error
from tests.test_structure import ROOT
from xla_dynamo import metrics
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels import attention
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.lowerings.builders.functions import add_argument, main_of
from xla_dynamo.lowerings.passes import manager
from xla_dynamo.lowerings.passes.registered import passes_for, registered_passes, registry_version
from xla_dynamo.lowerings.target import Target

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def none_is_left():
    yield
    left = registered_passes()
    for each in left:
        each.remove()
    assert not left


def names(target=CPU):
    return [each.name for each in passes_for(target)]


def nothing(module, target):
    """A pass that changes nothing."""


# --- what they do --------------------------------------------------------------------------------


def test_a_pass_runs_over_each_module_until_it_is_removed():
    handle = xla_dynamo.register_pass(sine_for_tanh, identity="sine-1")
    compiled = compiled_anew(torch.tanh)
    torch.testing.assert_close(compiled(X), X.sin())
    handle.remove()
    handle.remove()
    torch.testing.assert_close(compiled(X), X.sin())  # was compiled before
    torch.testing.assert_close(compiled_anew(torch.tanh)(X), X.tanh())


@pytest.mark.parametrize("dtype", [ir.F64Type, ir.BF16Type])
def test_a_pass_changes_no_call_of_a_library(dtype, monkeypatch):
    """OneDNN would end the process, and torch's kernels would read other memory."""

    def convert_operands(module, target):
        for op in operations_named(module, "stablehlo.custom_call"):
            with ir.InsertionPoint(op), op.location:
                for index, x in enumerate(op.operands):
                    other = ir.RankedTensorType.get(x.type.shape, dtype.get())
                    op.operands[index] = hlo.convert(other, x)

    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x)

    monkeypatch.setattr(attention, "FEWEST_IN_ATTENTION", 1)
    monkeypatch.setattr(attention, "FEWEST_IN_PLAN", 1)
    x = torch.randn(1, 2, 8, 8)
    with xla_dynamo.register_pass(convert_operands, identity="convert-1"):
        if "torch" in libraries_of("cpu"):
            error = compile_error(attend, x)
            assert isinstance(error, LoweringError)
            assert "the pass convert-1" in str(error)
            assert "wrote a call of a library that no kernel has checked" in str(error)
    torch.testing.assert_close(compiled_anew(attend)(x), attend(x))


def test_what_was_compiled_before_is_not_affected():
    compiled = compiled_anew(torch.tanh)
    compiled(X)
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1"):
        torch.testing.assert_close(compiled(X), X.tanh())
        torch.testing.assert_close(compiled_anew(torch.tanh)(X), X.sin())


def test_backwards_and_programs_of_frozen_values_have_it_too():
    seen = []

    def note(module, target):
        seen.append([str(t) for t in main_of(module).type.results])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5))

        def forward(self, x):
            return x @ self.weight.exp()

    model = Model()
    with xla_dynamo.register_pass(note, identity="note-1"):
        with torch.no_grad():
            compiled_anew(model, freeze=True)(X)
        assert sorted(seen) == [["tensor<3x5xf32>"], ["tensor<4x5xf32>"]]
        seen.clear()
        compiled_anew(model)(X).sum().backward()
    forward, backward = seen
    assert forward[0] == "tensor<3x5xf32>"
    assert backward == ["tensor<4x5xf32>"]  # the gradient


def test_parts_of_programs_of_jax_have_it_too():
    function, weights = xla_dynamo.jax.to_jax(nn.Tanh())
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1"):
        result = jax.jit(function)(weights, X.numpy())
    torch.testing.assert_close(torch.tensor(np.asarray(result)), X.sin())


def test_its_time_is_a_metric():
    metrics.clear_all()
    with xla_dynamo.register_pass(nothing, identity="nothing-1"):
        compiled_anew(torch.tanh)(X)
    assert metrics.metric_data("PassTime.nothing-1")[0] == 1
    assert metrics.metric_data("PassTime.materialize")[0] == 1
    assert "Metric: PassTime.outline\n" in metrics.metrics_report()


# --- where they run ------------------------------------------------------------------------------


def test_places():
    ours = names()
    with (
        xla_dynamo.register_pass(nothing, identity="last"),
        xla_dynamo.register_pass(nothing, identity="a", after="insert_barriers"),
        xla_dynamo.register_pass(nothing, identity="b", before="put_channels_last"),
        xla_dynamo.register_pass(nothing, identity="c", after="insert_barriers"),
        xla_dynamo.register_pass(nothing, identity="d", after="unmerge_products"),
    ):
        assert names() == ["d", "insert_barriers", "a", "c", "b", *ours[1:], "last"]
        assert names(Target("cpu", partitions=2))[-2:] == ["last", "gather_manual_regions"]
    assert names() == ours


def test_platforms():
    with (
        xla_dynamo.register_pass(nothing, identity="all"),
        xla_dynamo.register_pass(nothing, identity="gpus", platforms=["cuda", "rocm"]),
        xla_dynamo.register_pass(nothing, identity="none", platforms=[]),
    ):
        assert {"all", "gpus", "none"} & set(names(CPU)) == {"all"}
        assert {"all", "gpus", "none"} & set(names(GPU)) == {"all", "gpus"}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"rewrite": "text"}, TypeError, "needs a function of"),
        ({"identity": ""}, TypeError, "the identity of a pass must be a text or None"),
        ({"identity": 3}, TypeError, "the identity of a pass must be"),
        ({"platforms": "cpu"}, TypeError, r"platforms must be a list of names, as \['cpu'\]"),
        ({"before": "outline", "after": "outline"}, ValueError, "either before or after"),
        ({"before": "outlined"}, ValueError, "there is no pass 'outlined': the passes are unmerge"),
        ({"after": "taken"}, ValueError, "there is no pass 'taken'"),
        ({"identity": "taken"}, ValueError, "'taken' is registered already: call remove()"),
    ],
)
def test_what_cannot_be_registered(given, error, message):
    with xla_dynamo.register_pass(nothing, identity="taken"):
        version = registry_version()
        with pytest.raises(error, match=message):
            xla_dynamo.register_pass(**{"rewrite": nothing, **given})
        assert registry_version() == version
        assert len(registered_passes()) == 1


def test_threads_register_and_remove_at_once():
    """None is lost, and nobody sees one twice."""
    failures = []

    def register(thread):
        for number in range(50):
            handle = xla_dynamo.register_pass(nothing, identity=f"{thread} {number}")
            found = names()
            if found.count(handle.name) != 1 or len(found) != len(set(found)):
                failures.append(found)
            handle.remove()
            if handle.name in names():
                failures.append(handle.name)

    before = registry_version()
    threads = [threading.Thread(target=register, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert registry_version() == before + 4 * 50 * 2


# --- what they must not do -----------------------------------------------------------------------


def failed(rewrite, identity="mine-1"):
    """What a model says whose compilation has a pass."""
    torch._dynamo.reset()
    with xla_dynamo.register_pass(rewrite, identity=identity):
        error = compile_error(torch.tanh, X)
    assert isinstance(error, LoweringError)
    return str(error), error


def test_a_pass_that_raises_is_named():
    def divide(module, target):
        return 1 / 0

    message, error = failed(divide)
    assert message == (
        f"the pass mine-1 of {__name__} raised ZeroDivisionError: division by zero\n"
        "  mend the pass, or remove it: register_pass returned the handle"
    )
    assert isinstance(error.__cause__, ZeroDivisionError)
    message, _ = failed(divide, None)
    assert "the pass test_a_pass_that_raises_is_named.<locals>.divide of" in message


def test_a_pass_that_leaves_an_invalid_module_is_named(monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_PASSES", "")  # users' passes are verified always

    def unused(module, target):
        (op,) = operations_named(module, "stablehlo.tanh")
        op.move_after(main_of(module).entry_block.operations[-1].operation)

    message, _ = failed(unused)
    assert f"the pass mine-1 of {__name__} left an invalid module; mend the pass" in message


def test_a_pass_that_returns_a_module():
    message, _ = failed(lambda module, target: module)
    assert "returned Module: a pass changes the module in place, and returns nothing" in message


def test_a_pass_that_changes_the_signature():
    def add_result(module, target):
        main = main_of(module)
        *_, last = main.entry_block.operations
        add_argument(main, last.operands[0].type)

    message, _ = failed(add_result)
    assert "changed the type of main from (tensor<3x4xf32>) -> tensor<3x4xf32> to" in message

    def rename(module, target):
        main_of(module).attributes["sym_name"] = ir.StringAttr.get("other")

    message, _ = failed(rename)
    assert "-> tensor<3x4xf32> to none: a pass has to keep" in message


# --- the page ------------------------------------------------------------------------------------


def test_the_page_has_the_passes_that_the_limit_does_not_count():
    page = (ROOT / "docs" / "passes.md").read_text()
    (names,) = re.findall(r"passes that keep eager's numbers \((.*?)\)", page)
    passes = manager.table.PASSES
    assert re.findall(r"`(\w+)`", names) == [p.name for p in passes if p.keeps_numbers]
    (names,) = re.findall(r"Without (.*?) programs do not run", page)
    assert re.findall(r"`(\w+)`", names) == [p.name for p in passes if p.is_needed]


def test_two_passes_in_one_place_run_in_their_order():
    with (
        xla_dynamo.register_pass(cosine_for_tanh, identity="cosine-1"),
        xla_dynamo.register_pass(sine_for_tanh, identity="sine-1"),
    ):
        torch.testing.assert_close(compiled_anew(torch.tanh)(X), X.cos())
    with parsed("func.func public @main() { return }") as module:
        assert "sine-1" not in manager.run(module, CPU).seconds
