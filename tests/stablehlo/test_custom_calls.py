"""Operators without a rule as custom calls, named regions as composites; each starts cold."""

import ctypes

import jax
import numpy as np
import pytest
import torch
from torch.export import Dim

import xla_dynamo
from tests.stablehlo.exporting import exported
from xla_dynamo.runtime.cpu import ffi_structures, foreign_calls
from xla_dynamo.stablehlo import (
    NumpyGraphModule,
    StableHLOCompositeBuilder,
    StableHLOExportOptions,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
ALLOWED = StableHLOExportOptions(custom_ops_allowed_in_graph={"export_tests"})
DYNAMIC = ({0: Dim("batch")},)


@torch.library.custom_op("export_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor, dims: list[int], scale: float, name: str = "a") -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _(x, dims, scale, name="a"):
    return torch.empty_like(x)


class Custom(torch.nn.Module):
    def forward(self, x):
        return torch.ops.export_tests.tripled(x + 1, [1, 2], 0.5) * 2


@ctypes.CFUNCTYPE(ffi_structures.Pointer, ctypes.POINTER(ffi_structures.Frame))
def _triple(pointer):
    """What a user's library would have in C++: three times a float32 buffer."""
    frame = pointer.contents
    if frame.extension_start or frame.stage != ffi_structures.EXECUTE:
        return foreign_calls._handler(pointer)
    given, made = frame.operands.values[0].contents, frame.results.values[0].contents
    shape = (ctypes.c_int64 * given.rank).from_address(given.dims)[:]
    count = int(np.prod(shape))
    source = (ctypes.c_float * count).from_address(given.data)
    np.ctypeslib.as_array((ctypes.c_float * count).from_address(made.data))[:] = (
        np.ctypeslib.as_array(source) * 3
    )
    return None


@pytest.mark.parametrize("shapes", [None, DYNAMIC], ids=["fixed", "dynamic"])
def test_custom_operators(shapes, tmp_path):
    """They are calls, which a process runs that has registered the target."""
    model, x = Custom(), torch.randn(4, 2)
    module = exported(model, x, options=ALLOWED, dynamic_shapes=shapes)
    text = module.get_stablehlo_text()
    assert "stablehlo.custom_call @export_tests.tripled(" in text
    attributes = 'dims = dense<[1, 2]> : tensor<2xi64>, name = "a", scale = 5.000000e-01 : f64'
    assert attributes in text
    assert module.signature.custom_calls == ("export_tests.tripled",)
    if not foreign_calls.can_call():
        pytest.skip("no FFI of a known version")
    capsule = jax.ffi.pycapsule(ctypes.cast(_triple, ffi_structures.Pointer).value)
    jax.ffi.register_ffi_target("export_tests.tripled", capsule, platform="cpu")
    torch.testing.assert_close(module(x), model(x))
    module.save(tmp_path / "program")
    made = NumpyGraphModule.load(tmp_path / "program")(x.numpy())
    torch.testing.assert_close(torch.from_numpy(made), model(x))


def test_operators_without_a_rule_are_refused_unless_allowed():
    advice = r"no lowering for export_tests.tripled.default(?s:.)*  at .*test_custom_calls.py:"
    advice += r"(?s:.)*custom_ops_allowed_in_graph=\{'export_tests'\}"
    with pytest.raises(xla_dynamo.UnsupportedOperator, match=advice):
        exported(Custom(), torch.randn(4, 2))


@torch.library.custom_op("export_tests::unregistered", mutates_args=())
def unregistered(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


unregistered.register_fake(torch.empty_like)


def test_a_target_that_nobody_registered():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.export_tests.unregistered(x)

    module = exported(Model(), torch.randn(4), options=ALLOWED)
    with pytest.raises(xla_dynamo.CompileError, match=r"export_tests\.unregistered"):
        module(torch.randn(4))


class Regions(torch.nn.Module):
    """Two regions, one inside the other, and a weight that only the inner one reads."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        outer = StableHLOCompositeBuilder("tests.outer", {"count": 3, "name": "n", "scale": 0.5})
        inner = StableHLOCompositeBuilder("tests.inner")
        x, y = outer.mark_inputs(x, x * 2)
        z = inner.mark_outputs(torch.nn.functional.gelu(self.linear(inner.mark_inputs(x + y))))
        low, high = outer.mark_outputs(z - y, z + y)
        return low * high


@pytest.mark.parametrize("shapes", [None, DYNAMIC], ids=["fixed", "dynamic"])
def test_named_regions(shapes):
    model, x = Regions(), torch.randn(3, 4)
    module = exported(model, x, dynamic_shapes=shapes)
    text = module.get_stablehlo_text()
    main, _, functions = text.partition("func.func private")
    assert main.count('stablehlo.composite "tests.outer"') == 1
    assert 'count = 3 : i64, name = "n", scale = 5.000000e-01 : f32' in main
    assert "tests.inner" not in main
    assert functions.count('stablehlo.composite "tests.inner"') == 1
    assert "mark_tensor" not in text
    for batch in (3, 1, 8) if shapes else (3,):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(module(x), model(x))


@pytest.mark.slow
def test_marks_elsewhere_change_nothing():
    model, x = Regions(), torch.randn(3, 4)
    made = torch.compile(model, backend="openxla", options={"fallback": "error"})(x)
    torch.testing.assert_close(made, model(x))
    made.sum().backward()
    gradient = model.linear.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(gradient, model.linear.weight.grad)


def test_a_region_without_an_end():
    class Model(torch.nn.Module):
        def forward(self, x):
            return StableHLOCompositeBuilder("tests.open").mark_inputs(x) + 1

    with pytest.raises(xla_dynamo.UnsupportedError, match=r"'tests.open'.*call mark_outputs"):
        exported(Model(), torch.randn(3))


@pytest.mark.parametrize("attr", [{"a": []}, {"a": [1, 2.0]}, {"a": None}, {1: 2}, 3])
def test_attributes_of_other_types(attr):
    with pytest.raises(ValueError, match="of a composite"):
        StableHLOCompositeBuilder("tests.x", attr)
    with pytest.raises(ValueError, match="not int"):
        StableHLOCompositeBuilder("tests.x").mark_inputs(3)


def test_attributes_that_are_lists():
    class Model(torch.nn.Module):
        def forward(self, x):
            attributes = {"ints": [1, 2], "floats": [0.5], "bools": [True, False], "text": "t"}
            builder = StableHLOCompositeBuilder("tests.lists", attributes)
            return builder.mark_outputs(builder.mark_inputs(x) + 1)

    text = exported(Model(), torch.randn(3)).get_stablehlo_text()
    assert "ints = dense<[1, 2]> : tensor<2xi64>" in text
    assert "floats = dense<5.000000e-01> : tensor<1xf32>" in text
    assert "bools = dense<[true, false]> : tensor<2xi1>" in text
    assert 'text = "t"' in text
