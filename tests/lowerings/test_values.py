"""Sizes of values, and the operations that define them."""

import pytest
from jax.extend.mlir import ir

from tests.lowerings.passes.rewriting import parsed
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.builders.values import (
    defining_name,
    defining_operation,
    is_known,
    nbytes_of,
    numel_of,
    source_of,
)

TEXT = """
func.func public @main(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<2x3xf32>
  %s = stablehlo.add %x, %c : tensor<2x3xf32>
  %t = stablehlo.transpose %s, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
  return %t : tensor<3x2xf32>
}
"""


def test_what_defines_a_value():
    with parsed(TEXT) as module:
        block = main_of(module).entry_block
        constant, add, transpose, _ = (op.operation for op in block.operations)
        x, (t,) = block.arguments[0], transpose.results
        assert defining_operation(x) is None
        assert defining_name(x) is None
        assert defining_operation(t) == transpose
        assert defining_name(t) == "stablehlo.transpose"
        assert source_of(t) == (add.results[0], [1, 0])
        assert source_of(x) == (x, [0, 1])
        assert is_known(constant.results[0])
        assert not is_known(t)


@pytest.mark.parametrize(
    ("element", "size"),
    [("i1", 1), ("i8", 1), ("f8E4M3FN", 1), ("bf16", 2), ("f32", 4), ("i64", 8),
     ("complex<f32>", 8), ("complex<f64>", 16)],
)  # fmt: skip
def test_sizes(element, size):
    with parsed("func.func public @main() { return }") as module:
        type_ = ir.Type.parse(f"tensor<2x3x{element}>")
        x = main_of(module).entry_block.add_argument(type_, ir.Location.unknown())
        assert numel_of(x) == 6
        assert nbytes_of(x) == 6 * size
