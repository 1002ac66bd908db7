"""Texts of pending graphs name what was recorded; nothing is computed, and tensors stay usable."""

import functools
import json
import threading

import jax.numpy as jnp
import pytest
import torch

import xla_dynamo
from xla_dynamo.errors import ExecutionError
from xla_dynamo.lazy.placeholders import create_placeholder_tensor, is_placeholder
from xla_dynamo.torch_xla.forms import graph_texts
from xla_dynamo.torch_xla.forms.lowering_context import LoweringContext
from xla_dynamo.xla_builder import (
    call_jax,
    computation_from_module_proto,
    create_builder,
    get_computation_hlo,
)


def executions():
    """How many programs have run."""
    return (xla_dynamo.metrics.metric_data("ExecuteTime") or (0,))[0]


@pytest.fixture(name="pair")
def made():
    """A pending tensor, and one of its inputs."""
    xla_dynamo.device()
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    on_device = x.to("xla"), w.to("xla")
    before = executions()
    result = torch.nn.functional.linear(*on_device).relu() * 2.5
    yield result, on_device[0]
    assert executions() == before
    torch.testing.assert_close(result.cpu(), torch.nn.functional.linear(x, w).relu() * 2.5)


def test_text_of_operators(pair):
    result, _ = pair
    text = graph_texts.get_xla_tensors_text([result])
    lines = text.split("\n")
    assert lines[0] == "IR {"
    assert "f32[3,5]{1,0} aten::mul(" in lines[-3]
    assert lines[-3].endswith("ROOT=0")
    assert text.count("xla::device_data()") == 2
    assert "prim::Constant(), xla_shape=f64[], value=2.5" in text
    for name in ("permute", "mm", "relu"):
        assert f" aten::{name}(" in text
    assert "location=made@test_graph_texts.py:" in text
    assert "aten::clone" not in text


def test_text_of_computed_tensors_and_views(pair):
    result, x = pair
    text = graph_texts.get_xla_tensors_text([x, result[1:], x])
    assert text.count("xla::device_data()") == 2
    assert "device=xla:0, ROOT=0, ROOT=2" in text
    assert "f32[2,5]{1,0} aten::slice(" in text
    alone = graph_texts.get_xla_tensors_text([x])
    assert alone.split("\n")[1].strip().startswith("%0 = f32[3,4]{1,0} xla::device_data()")


def test_text_of_lists_and_random_numbers():
    x = torch.randn(4, 4, device=xla_dynamo.device())
    first, _ = torch.topk(x, 2)
    text = graph_texts.get_xla_tensors_text([first])
    assert "aten::randn(" in text
    assert "(f32[4,2]{1,0}, s64[4,2]{1,0}) aten::topk(" in text
    assert text == graph_texts.get_xla_tensors_text([first])
    values, _ = torch.topk(x.cpu(), 2)
    torch.testing.assert_close(first.cpu(), values)


def test_dot_has_an_edge_for_each_operand(pair):
    text = graph_texts.get_xla_tensors_dot([pair[0]])
    nodes = text.count("[label=")
    assert text.startswith("digraph G {")
    assert text.rstrip().endswith("}")
    assert text.count(" -> ") == nodes - 1  # each line has one reader but the last


def test_stablehlo_and_hlo(pair, monkeypatch):
    result, _ = pair
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    assert "test_graph_texts.py" in graph_texts.get_stablehlo([result])
    monkeypatch.delenv("XLA_HLO_DEBUG")
    text = graph_texts.get_stablehlo([result])
    assert "stablehlo.dot_general" in text
    assert "-> tensor<3x5xf32>" in text
    hlo = graph_texts.get_xla_tensors_hlo([result])
    assert hlo.startswith("HloModule IrToHlo")
    assert " dot(" in hlo
    proto = graph_texts.get_xla_tensors_hlo_proto([result])
    assert " dot(" in get_computation_hlo(computation_from_module_proto("again", proto))
    assert graph_texts.get_stablehlo_of_extension([result]).decode() == text


def test_a_portable_artifact_runs():
    before = torch.ones(2, 2, device=xla_dynamo.device()) + 1
    xla_dynamo.sync()
    after = before @ before
    artifact = graph_texts.get_stablehlo_bytecode([after])
    (found,) = graph_texts.run_stablehlo(artifact, [torch.ones(2, 2)])
    torch.testing.assert_close(found, torch.full((2, 2), 2.0))
    assert graph_texts.get_stablehlo_of_extension([after], emit_bytecode=True) == artifact


def test_all_that_is_pending(pair):
    result, x = pair
    other = x.sin()
    text = graph_texts.get_stablehlo()
    assert "stablehlo.sine" in text
    assert "stablehlo.dot_general" in text
    assert "stablehlo.sine" not in graph_texts.get_stablehlo([result])
    del other


def test_hashes():
    device = xla_dynamo.device()
    x = torch.ones(2, 3).to(device)
    y = torch.zeros(2, 3).to(device)
    one, two = (graph_texts.get_graph_hash([t * s + 1]) for t, s in ((x, 2.5), (y, 3.5)))
    assert one == two
    assert len(one) == 16
    assert graph_texts.get_graph_hash([x * 2.5 - 1]) != one
    assert graph_texts.get_graph_hash([x[:1] * 2.5 + 1]) != one


def test_functions_of_jax_are_in_the_text():
    x = torch.ones(2, 3, device=xla_dynamo.device())
    made = call_jax(jnp.cos, (x,))
    assert "xla::call_jax" in graph_texts.get_xla_tensors_text([made])
    assert "stablehlo.cosine" in graph_texts.get_stablehlo([made])


def test_debug_info():
    device = xla_dynamo.device()
    assert "Not a XLATensor" in graph_texts.get_xla_tensor_debug_info(torch.ones(2))
    x = torch.randn(5).to(device) + 5
    told = graph_texts.get_xla_tensor_debug_info(x)
    assert "XLA Shape: f32[5]{0}\nIR: f32[5]{0} aten::add(" in told
    assert "XLAData: None" in told
    xla_dynamo.sync()
    told = graph_texts.get_xla_tensor_debug_info(x)
    assert "IR: None" in told
    assert "Data Shape: f32[5]{0}" in told
    assert graph_texts.get_xla_tensor_shape_type(x.bfloat16()) == "bf16"


def test_lowering_contexts():
    device = xla_dynamo.device()
    a, b = torch.tensor([1.0, 2.0]).to(device), torch.tensor([4.0, 5.0]).to(device)
    result = a + b
    context = LoweringContext("MyCustomName")
    with pytest.raises(RuntimeError, match=r"call build\("):
        context.hlo()
    context.build([result])
    text = context.hlo_text()
    assert 'name: "MyCustomName"' in text
    assert text.count('opcode: "parameter"') == 2
    assert 'opcode: "add"' in text
    told = json.loads(context.hlo_json())
    assert len(told["hostProgramShape"]["parameters"]) == 2
    assert told["hostProgramShape"]["result"]["elementType"] == "F32"
    assert told["hostProgramShape"]["result"]["dimensions"] == ["2"]
    assert "stackFrameIndex" in told
    assert " add(" in get_computation_hlo(computation_from_module_proto("x", context.hlo()))
    numbers = [context.tensor_parameter_id(x) for x in (a, b, result)]
    assert sorted(numbers) == [-1, 0, 1]
    a.add_(1)
    del b
    xla_dynamo.sync()
    found = context.parameter_id_tensor_mapping()
    torch.testing.assert_close(found[numbers[0]], torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(found[numbers[1]], torch.tensor([4.0, 5.0]))
    again = context.device_parameter_id_tensor_mapping()
    assert {number: x.device.type for number, x in again.items()} == {0: "xla", 1: "xla"}
    context.set_name_string("Other")
    context.build([result])
    assert context.get_name_string() == "Other"
    assert 'name: "Other"' in context.hlo_text()


def test_every_parameter_is_in_the_mapping():
    device = xla_dynamo.device()
    tensors = [torch.tensor(float(i // 3), device=device) for i in range(9)]
    drawn = torch.rand((), device=device)
    result = functools.reduce(lambda a, b: a + b, tensors) * 1.5 + drawn
    context = LoweringContext()
    context.build([torch.nn.functional.layer_norm(result.expand(3), (3,))])
    told = json.loads(context.hlo_json())["hostProgramShape"]["parameters"]
    found = context.parameter_id_tensor_mapping()
    assert sorted(found) == list(range(len(told)))
    for number, parameter in enumerate(told):
        assert list(found[number].shape) == [int(n) for n in parameter.get("dimensions", ())]
    assert result.isfinite().item()


def test_graphs_are_saved(tmp_path, monkeypatch):
    x = torch.ones(2, device=xla_dynamo.device()) * 3
    for form, text in (("text", "aten::mul"), ("dot", "digraph"), ("hlo", "HloModule")):
        monkeypatch.setenv("SAVE_GRAPH_FMT", form)
        graph_texts.save_tensors_graph(tmp_path, f"of_{form}", [x])
        graph_texts.save_tensors_graph(tmp_path, f"of_{form}", [x])
        thread = threading.current_thread().ident
        for number in range(2):
            path = tmp_path / f"of_{form}-{thread}-{number}.{form}"
            assert text in path.read_text()
    monkeypatch.setenv("SAVE_GRAPH_FMT", "pdf")
    with pytest.raises(RuntimeError, match="text, dot, hlo"):
        graph_texts.save_tensors_graph(tmp_path, "x", [x])


def test_placeholders():
    xla_dynamo.device()
    given = create_placeholder_tensor((2, 3), torch.bfloat16)
    assert (given.shape, given.dtype, given.device.type) == ((2, 3), torch.bfloat16, "xla")
    assert is_placeholder(given)
    made = given @ given.t() + 1
    assert not is_placeholder(made)
    text = graph_texts.get_stablehlo([made])
    assert "%arg0: tensor<2x3xbf16>" in text
    assert "dot_general" in text
    for tensor in (made, given):
        with pytest.raises(ExecutionError, match=r"placeholder of shape \(2, 3\)"):
            tensor.cpu()


def test_computations_by_functions_of_the_extension():
    builder = create_builder("low")
    x = graph_texts.op_param(builder, 0, {"type": "f32", "sizes": (2,)})
    doubled = graph_texts.op_create(builder, "Add", (x, x), {})
    computation = graph_texts.op_build("low", doubled)
    (found,) = graph_texts.user_computation("xla::low", [torch.ones(2)], computation)
    torch.testing.assert_close(found, torch.full((2,), 2.0))
