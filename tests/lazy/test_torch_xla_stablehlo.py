"""Names of `torch_xla.stablehlo`: bundles, their folders, marks, custom calls and locations."""

import json

import numpy as np
import pytest
import torch

import xla_dynamo
from xla_dynamo.errors import StorageError, UnsupportedError
from xla_dynamo.stablehlo import StableHLOCompositeBuilder, exported_program_to_stablehlo
from xla_dynamo.torch_xla.forms import composite_marks, exports, graph_texts, stablehlo
from xla_dynamo.torch_xla.forms.stablehlo import StableHLOExportOptions, StableHLOGraphModule
from xla_dynamo.torch_xla.forms.stablehlo_bundles import InputLocation, VariableType

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning", "ignore:The tensor attributes:UserWarning"
)
X, B = torch.randn(2, 4), torch.randn(3)


@pytest.fixture(autouse=True)
def _device():
    xla_dynamo.device()


class Nested(torch.nn.Module):
    """A model with inputs and outputs in dictionaries, half weights, and a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3).bfloat16()
        self.register_buffer("count", torch.zeros(3))
        self.offsets = torch.arange(3.0)

    def forward(self, x, others):
        self.count.add_(1)
        y = self.linear(x.bfloat16()).float() + others["b"] + self.offsets
        return {"y": y, "none": None, "z": (torch.nn.functional.layer_norm(x, (4,)), 3)}


def export(model, *args, **kwargs):
    return torch.export.export(model, args, **kwargs)


def nested():
    """A model, a program of it, and what eager says."""
    model = Nested().eval()
    program = export(model, X, {"b": B})
    return program, model(X, {"b": B})


def test_a_bundle_is_called_and_written(tmp_path):
    program, expected = nested()
    module = stablehlo.exported_program_to_stablehlo(program)
    torch.testing.assert_close(module(X, {"b": B}), expected)
    module.save(tmp_path)
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    functions = {f"functions/forward.{end}" for end in ("meta", "bytecode", "mlir")}
    assert functions <= files
    assert {"data/linear.weight", "data/linear.bias", "data/offsets"} <= files
    again = StableHLOGraphModule.load(tmp_path)
    torch.testing.assert_close(again(X, {"b": B}), expected)
    assert again.get_stablehlo_text() == module.get_stablehlo_text()
    assert again.get_stablehlo_bytecode("forward") == module.get_stablehlo_bytecode()
    locations = again._bundle.stablehlo_funcs[0].meta.input_locations
    assert InputLocation.input_arg(1) in locations
    assert InputLocation.parameter("linear.weight") in locations


def test_results_are_on_the_device_of_the_arguments():
    module = stablehlo.exported_program_to_stablehlo(export(torch.nn.Linear(4, 3), X))
    assert module(X).device.type == "cpu"
    assert module(X.to("xla")).device.type == "xla"
    torch.testing.assert_close(module(X.numpy()), module(X))


# As PyTorch/XLA 2.9 writes it.
META = {
    "name": "forward",
    "stablehlo_version": "0.0.0",
    "input_signature": [
        {"shape": [3], "dtype": "float32", "dynamic_dims": []},
        {"shape": [2, 3], "dtype": "float32", "dynamic_dims": [0]},
        {"shape": [], "dtype": "float32", "dynamic_dims": []},
    ],
    "output_signature": [{"shape": [2, 3], "dtype": "float32", "dynamic_dims": []}],
    "input_locations": [
        {"type_": "parameter", "position": -1, "name": "weight"},
        {"type_": "input_arg", "position": 0, "name": ""},
        {"type_": "constant", "position": 0, "name": ""},
    ],
    "unused_inputs": [
        [
            {"type_": "input_arg", "position": 1, "name": ""},
            {"shape": [1], "dtype": "float32", "dynamic_dims": []},
        ]
    ],
    "input_pytree_spec": None,
    "output_pytree_spec": None,
}


def test_a_folder_of_pytorch_xla_is_read(tmp_path):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, x, scale):
            return x * self.weight * scale

    model = Scaled()
    size = {0: torch.export.Dim("n", min=2)}
    program = export(model, torch.ones(4, 3), torch.tensor(1.0), dynamic_shapes=(size, None))
    made = exported_program_to_stablehlo(program)
    order = [(a.kind, a.name) for a in made.signature.arguments]
    assert order == [("input", "0"), ("input", "1"), ("weight", "weight")]
    places = [META["input_locations"][i] for i in (1, 2, 0)]
    forms = [META["input_signature"][i] for i in (1, 2, 0)]
    meta = {**META, "input_locations": places, "input_signature": forms}
    for name in ("functions", "data", "constants"):
        (tmp_path / name).mkdir()
    (tmp_path / "functions" / "forward.meta").write_text(json.dumps(meta))
    (tmp_path / "functions" / "forward.bytecode").write_bytes(made.get_stablehlo_bytecode())
    with (tmp_path / "data" / "weight").open("wb") as file:
        np.save(file, model.weight.detach().numpy())
    with (tmp_path / "constants" / "0").open("wb") as file:
        np.save(file, np.float32(5))
    module = StableHLOGraphModule.load(tmp_path)
    for count in (5, 2):
        x = torch.randn(count, 3)
        (found,) = module(x, torch.zeros(1))
        torch.testing.assert_close(found, x * model.weight.detach() * 5)
    meta = module._bundle.stablehlo_funcs[0].meta
    assert meta.unused_inputs[0][0].type_ is VariableType.INPUT_ARG
    assert "stablehlo.multiply" in module.get_stablehlo_text()


def test_a_folder_of_ours_is_read(tmp_path):
    program, expected = nested()
    exported_program_to_stablehlo(program).save(tmp_path / "ours")
    module = StableHLOGraphModule.load(tmp_path / "ours")
    torch.testing.assert_close(module(X, {"b": B}), expected)


def test_options(tmp_path):
    options = StableHLOExportOptions()
    options.save_weights = False
    options.include_human_readable_text = False
    options.override_tracing_arguments = (X,)
    model = torch.nn.Linear(4, 3)
    stablehlo.save_torch_model_as_stablehlo(model, (X,), tmp_path, options)
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "functions" / "forward.mlir").exists()
    module = StableHLOGraphModule.load(tmp_path)
    assert "stablehlo.dot_general" in module.get_stablehlo_text()
    with pytest.raises(KeyError, match="no weight 'weight'"):
        module(X)
    options.export_weights = False
    made = stablehlo.exported_program_to_stablehlo(export(model, X), options)
    assert made._bundle.state_dict == {}


def test_dynamic_sizes_are_told():
    size = torch.export.Dim("n", min=2)
    program = export(torch.nn.Linear(4, 3), X, dynamic_shapes=({0: size},))
    assert exports.exported_program_has_symbolic_input_shape(program)
    assert not exports.exported_program_has_symbolic_input_shape(export(torch.nn.ReLU(), X))
    exports.process_exported_program_with_symbolic_input(program)
    module = stablehlo.exported_program_to_stablehlo(program)
    assert module._bundle.stablehlo_funcs[0].meta.input_signature[0].dynamic_dims == [0]
    for count in (2, 7):
        assert module(torch.randn(count, 4)).shape == (count, 3)
    with pytest.raises(TypeError, match=r"input 0 is float32\[2, 5\]"):
        module(torch.randn(2, 5))
    with pytest.raises(TypeError, match="input 0 is int64"):
        module(torch.ones(2, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match="input 0 is float, "):
        module(2.0)


def test_wrong_folders_are_errors(tmp_path):
    with pytest.raises(StorageError, match="no functions of StableHLO"):
        StableHLOGraphModule.load(tmp_path / "nothing")
    (tmp_path / "functions").mkdir()
    with pytest.raises(StorageError, match=r"no functions/\*\.meta"):
        StableHLOGraphModule.load(tmp_path)
    (tmp_path / "functions" / "forward.meta").write_text('{"name": "x"}')
    with pytest.raises(StorageError, match="is not how a function is called"):
        StableHLOGraphModule.load(tmp_path)
    program, _ = nested()
    module = stablehlo.exported_program_to_stablehlo(program)
    module._bundle.state_dict["../x"] = np.zeros(1)
    with pytest.raises(StorageError, match="rename the weight"):
        module.save(tmp_path / "new")
    with pytest.raises(StorageError, match="cannot be written"):
        stablehlo.save_as_stablehlo(program, tmp_path / "functions" / "forward.meta")


def test_a_size_among_the_results_is_an_error():
    class Size(torch.nn.Module):
        def forward(self, x):
            return x + 1, x.shape[0]

    size = torch.export.Dim("n", min=2)
    with pytest.raises(UnsupportedError, match="returns a size"):
        stablehlo.exported_program_to_stablehlo(export(Size(), X, dynamic_shapes=({0: size},)))


class Sine(torch.nn.Module):
    """A model of one operator."""

    def forward(self, x):
        return x.sin()


class Composite(torch.nn.Module):
    """A model with a named region."""

    def forward(self, x, y):
        builder = StableHLOCompositeBuilder("test.add", {"scale": 0.25, "list": [1, 2]})
        x, y = builder.mark_inputs(x, y)
        return builder.mark_outputs(x + y)


def test_marks_of_pending_tensors_are_composites():
    x = X.to("xla")
    made = Composite()(x, x)
    text = graph_texts.get_stablehlo([made])
    assert text.count('stablehlo.composite "test.add"') == 1
    assert "scale = 2.500000e-01 : f32" in text
    assert "list = dense<[1, 2]> : tensor<2xi64>" in text
    torch.testing.assert_close(made.cpu(), X + X)
    first = composite_marks.mark_tensor(x, "test.p", 0, "0", True)
    attributes = composite_marks.serialize_composite_attr({"flag": True})
    last = composite_marks.mark_tensor(first * 2, "test.p", 0, "0", False, attributes)
    assert "flag = true" in graph_texts.get_stablehlo([last])


def test_operations_have_the_metadata_of_their_nodes():
    options = StableHLOExportOptions(export_node_metadata=True)
    program = export(torch.nn.Linear(4, 3), X)
    text = stablehlo.exported_program_to_stablehlo(program, options).get_stablehlo_text()
    assert "stack_trace" in text
    assert "nn_module_stack" in text


def test_an_exported_graph_runs_on_the_device():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x.sin() + torch.ones(2, 4, device="cpu")

    program = stablehlo.run_decompositions(export(Model(), X))
    interpreter = exports.XLAExportInterpreter(program.graph_module, "xla")
    (found,) = interpreter.run(X.to("xla"))
    torch.testing.assert_close(found.cpu(), X.sin() + 1)
    program = stablehlo.run_decompositions(export(Sine(), X))
    allowed = exports.XLAExportInterpreter(program.graph_module, "xla", {"aten"})
    (found,) = allowed.run(X.to("xla"))
    assert "stablehlo.custom_call @aten.sin.default" in graph_texts.get_stablehlo([found])
    del found, allowed


def test_graph_helpers():
    graph = export(exports_model(), X).graph_module
    count = len(graph.graph.nodes)
    exports.remove_no_op_slice(graph)
    assert len(graph.graph.nodes) == count - 1
    torch.testing.assert_close(graph(X)[0], X + 1)
    first, *_, last = graph.graph.nodes
    with graph.graph.inserting_before(last):
        node = exports.call_function(graph.graph, torch.ops.aten.sum.default, (first,))
    assert node.meta["val"].shape == ()


def exports_model():
    """A model with a slice of all."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.aten.slice.Tensor(x, 0, 0, 9223372036854775807) + 1

    return Model()


def test_custom_calls_have_the_names_of_overloads():
    library = torch.library.Library("bundles", "DEF")
    library.define("doubled(Tensor x) -> Tensor")
    torch.library.register_fake("bundles::doubled", torch.empty_like, lib=library)

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.bundles.doubled(x.sin())

    options = StableHLOExportOptions()
    options.custom_ops_allowed_in_graph.add("bundles")
    text = stablehlo.exported_program_to_stablehlo(export(Model(), X), options)
    assert "stablehlo.custom_call @bundles.doubled.default(" in text.get_stablehlo_text()
