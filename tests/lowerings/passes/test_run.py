"""`manager.run`: which passes run for a target, in which order, and that modules stay valid."""

import dataclasses

import pytest
import torch

from tests.lowerings.passes.rewriting import CPU, GPU, parsed, rewritten
from xla_dynamo.kernels.onednn_convolution import OneDNNConvolution
from xla_dynamo.kernels.packed_convolution import PackedConvolution
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.passes import manager, table
from xla_dynamo.lowerings.passes.result_permutations import allow_any_permutation
from xla_dynamo.lowerings.target import Target


@pytest.fixture
def ran(monkeypatch):
    """The names of the passes that ran, in order; they do nothing."""
    names = []

    def recording(given):
        def rewrite(module, target):
            names.append(given.name)

        return dataclasses.replace(given, rewrite=rewrite)

    monkeypatch.setattr(table, "PASSES", tuple(map(recording, table.PASSES)))
    return names


ORDERS = {
    # Barriers stand behind the operators' own results, so before anything else is written; views
    # are moved before it is chosen how a result is permuted; and what the others have written is
    # materialized at last.
    CPU: [
        "insert_barriers",
        "put_channels_last",
        "call_packed",
        "choose_permutations",
        "guard_exponentials",
        "split_reductions",
        "move_as_integers",
        "outline",
        "materialize",
    ],
    # Reshapes are moved first, as barriers look at what reads a value behind them.
    # No library calls, functions and other forms where XLA's partitioner has to see everything.
    # Channels are numbered at last.
    Target("cpu", partitions=2): [
        "unmerge_products",
        "insert_barriers",
        "guard_exponentials",
        "gather_manual_regions",
    ],
    GPU: ["insert_barriers", "choose_permutations", "set_matmul_precision"],
    Target("cuda", partitions=2): [
        "unmerge_products",
        "insert_barriers",
        "set_matmul_precision",
        "gather_manual_regions",
    ],
    Target("tpu"): ["insert_barriers", "choose_permutations", "set_matmul_precision"],
}
by_target = pytest.mark.parametrize(
    "target", ORDERS, ids=lambda target: f"{target.platform}-{target.partitions}"
)


@by_target
def test_order(ran, target):
    with parsed("func.func public @main() { return }") as module:
        manager.run(module, target)
    assert ran == ORDERS[target]


# Something for each pass: sums, an image between convolutions, a result that may be permuted, a NaN
# with an exponential, columns, an update that is read, a value of two reductions, a product, and
# one of merged rows.
MODULE = """
func.func public @main(
    %x: tensor<256x100xf32>, %y: tensor<256x100xf32>, %row: tensor<1x100xf32>, %i: tensor<i64>,
    %image: tensor<2x4x6x8xf32>, %handles: tensor<2xi64>, %stack: tensor<2x3x4xf32>,
    %w: tensor<4x4xf32>
) -> (tensor<100xf32>, tensor<256xf32>, tensor<100x256xf32>, tensor<256x256xf32>,
    tensor<256x100xf32>, tensor<256x100xf32>, tensor<2x4x6x8xf32>, tensor<2x3x4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
  %big = stablehlo.constant dense<1.0e8> : tensor<256x100xf32>
  %more = stablehlo.add %x, %big {xla_dynamo.result} : tensor<256x100xf32>
  %less = stablehlo.subtract %more, %big {xla_dynamo.result} : tensor<256x100xf32>
  %both = stablehlo.multiply %less, %y {xla_dynamo.result} : tensor<256x100xf32>
  %e = stablehlo.exponential %both {xla_dynamo.result} : tensor<256x100xf32>
  %columns = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<256x100xf32>, tensor<f32>) -> tensor<100xf32>
  %rows = stablehlo.reduce(%e init: %nan) applies stablehlo.maximum across dimensions = [1]
    : (tensor<256x100xf32>, tensor<f32>) -> tensor<256xf32>
  %t = stablehlo.transpose %both, dims = [1, 0] : (tensor<256x100xf32>) -> tensor<100x256xf32>
  %products = stablehlo.dot_general %e, %t, contracting_dims = [1] x [0]
    : (tensor<256x100xf32>, tensor<100x256xf32>) -> tensor<256x256xf32>
  %updated = stablehlo.dynamic_update_slice %y, %row, %i, %i
    : (tensor<256x100xf32>, tensor<1x100xf32>, tensor<i64>, tensor<i64>) -> tensor<256x100xf32>
  %read = stablehlo.tanh %updated : tensor<256x100xf32>
  %first = stablehlo.custom_call @__onednn$convolution(%image)
    : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32>
  %channels_first = stablehlo.transpose %first, dims = [0, 3, 1, 2]
    : (tensor<2x4x6x8xf32>) -> tensor<2x8x4x6xf32>
  %absolute = stablehlo.abs %channels_first : tensor<2x8x4x6xf32>
  %channels_last = stablehlo.transpose %absolute, dims = [0, 2, 3, 1]
    : (tensor<2x8x4x6xf32>) -> tensor<2x4x6x8xf32>
  %second = stablehlo.custom_call @xla_dynamo.packed(%handles, %channels_last)
    {api_version = 4 : i32, backend_config = {kernel = "PACKED", number = 0 : i64}}
    : (tensor<2xi64>, tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32>
  %merged = stablehlo.reshape %stack : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
  %linear = stablehlo.dot_general %merged, %w, contracting_dims = [1] x [0]
    : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %split = stablehlo.reshape %linear : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
  return %columns, %rows, %t, %products, %updated, %read, %second, %split
    : tensor<100xf32>, tensor<256xf32>, tensor<100x256xf32>, tensor<256x256xf32>,
      tensor<256x100xf32>, tensor<256x100xf32>, tensor<2x4x6x8xf32>, tensor<2x3x4xf32>
}
"""
_ONE = OneDNNConvolution(
    image=(2, 8, 4, 6),
    kernel=(8, 8, 1, 1),
    result=(2, 8, 4, 6),
    kernel_dims=(0, 1),
    stride=(1, 1),
    low=(0, 0),
    high=(0, 0),
    dilation=(1, 1),
    groups=1,
    dtypes=(torch.float32, torch.float32),
    bias=False,
)
_TEXT = f"packed_convolution:{PackedConvolution(_ONE).text()}"
MODULE = MODULE.replace("PACKED", _TEXT.replace('"', "\\22"))
# What each pass leaves in a module that was something for it.
TRACES = {
    "unmerge_products": "(tensor<2x3x4xf32>, tensor<4x4xf32>) -> tensor<2x3x4xf32>",
    "insert_barriers": "%arg7: tensor<4x4xf32>, %arg8: tensor<f32>)",
    "put_channels_last": ": tensor<2x4x6x8xf32>\n",  # the absolute value is of this type
    "call_packed": "@xla_dynamo.script(",
    "choose_permutations": "-> (tensor<100xf32>, tensor<256xf32>, tensor<256x100xf32>,",
    "guard_exponentials": "stablehlo.select",
    "split_reductions": "stablehlo.reduce_window",
    "outline": "call @dynamic_update_slice",
    "materialize": "call @once",
    "set_matmul_precision": "precision = [HIGHEST",
}


@by_target
def test_a_rewritten_module_is_valid(target):
    def rewrite(module, target):
        allow_any_permutation(main_of(module), {2})
        notes.append(manager.run(module, target).notes)

    notes = []
    after = rewritten(rewrite, MODULE, target)
    assert "xla_dynamo.result" not in after
    assert "xla_dynamo.any_permutation" not in after or "choose_permutations" not in ORDERS[target]
    for name, trace in TRACES.items():
        assert (trace in after) == (name in ORDERS[target]), name
    (noted,) = notes
    assert noted.takes_negative_zero
    permutes, packs = (name in ORDERS[target] for name in ("choose_permutations", "call_packed"))
    assert noted.permutations == ({2: (1, 0)} if permutes else {})
    assert len(noted.forms) == packs
