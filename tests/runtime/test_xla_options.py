"""XLA's options that every program is compiled with."""

import pytest
import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo import errors
from xla_dynamo.runtime import xla_options
from xla_dynamo.runtime.clients import placement_at
from xla_dynamo.runtime.executables import Executable

PRODUCT_AND_SUM = """
func.func public @main(%a: tensor<256x256xf32>) -> tensor<256xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = stablehlo.exponential %b : tensor<256x256xf32>
  %d = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<256x256xf32>, tensor<f32>) -> tensor<256xf32>
  return %d : tensor<256xf32>
}
"""


@pytest.fixture
def build():
    def executable(given=None):
        with make_ir_context():
            module = ir.Module.parse(PRODUCT_AND_SUM)
        return Executable(module, placement_at("cpu", 0), given)

    return executable


def test_ynnpack_has_the_products_only(build):
    calls = [line for line in build().hlo_text().splitlines() if "kind=kCustom" in line]
    assert len(calls) == 1
    assert "256,256" in calls[0]


def test_the_user_decides(build):
    none = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INVALID"}
    assert "kind=kCustom" not in build(none).hlo_text()


def test_xla_flags_decide(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_DEFAULT")
    left = set(xla_options.OF_PLATFORM["cpu"]) - {"xla_cpu_scheduler_type"}
    assert set(xla_options.with_defaults("cpu", {})) == left


def test_an_option_that_this_xla_does_not_have_is_left_out(monkeypatch, build):
    ours = {"xla_gone_with_this_version": 1, **xla_options.OF_PLATFORM["cpu"]}
    monkeypatch.setattr(xla_options, "OF_PLATFORM", {"cpu": ours})
    assert "kind=kCustom" in build().hlo_text()
    assert xla_options._refused.names == {"xla_gone_with_this_version"}
    # What the user asks for is not left out.
    with pytest.raises(errors.CompileError, match="xla_gone_with_this_version"):
        build({"xla_gone_with_this_version": 1})


def test_no_option_of_ours_is_refused_by_this_version():
    torch.compile(lambda x: x @ x, backend="openxla")(torch.ones(3, 3))
    assert not xla_options._refused.names, (
        "this jaxlib has other names for options of XLA: adapt xla_dynamo/runtime/xla_options.py"
    )
