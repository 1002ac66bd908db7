"""A result that the caller takes in any permutation is the source of a transpose."""

from tests.lowerings.passes.rewriting import CPU, normalized, parsed, rewritten
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.result_permutations import (
    allow_any_permutation,
    choose_permutations,
    remove_marks,
)

TRANSPOSED = """
func.func public @main(%x: tensor<2x3x4xf32>) -> (tensor<4x2x3xf32>, tensor<4x2x3xf32>) {
  %y = stablehlo.tanh %x : tensor<2x3x4xf32>
  %t = stablehlo.transpose %y, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  return %t, %t : tensor<4x2x3xf32>, tensor<4x2x3xf32>
}
"""


def test_the_source_of_a_transpose_is_returned_where_it_may_be():
    """The second result is not marked."""
    after = """
func.func public @main(%x: tensor<2x3x4xf32>)
    -> (tensor<2x3x4xf32>, tensor<4x2x3xf32>) {
  %y = stablehlo.tanh %x : tensor<2x3x4xf32>
  %t = stablehlo.transpose %y, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  return %y, %t : tensor<2x3x4xf32>, tensor<4x2x3xf32>
}
"""

    def rewrite(module, target):
        allow_any_permutation(main_of(module), {0})
        choose_permutations(module, target)

    assert rewritten(rewrite, TRANSPOSED) == normalized(after)


def test_the_permutation_is_noted():
    with parsed(TRANSPOSED) as module:
        allow_any_permutation(main_of(module), {0})
        assert choose_permutations(module, CPU) == Notes(permutations={0: (2, 0, 1)})
        assert choose_permutations(module, CPU) is None
        assert "xla_dynamo" not in str(module)


def test_marks_can_be_removed():
    def rewrite(module, target):
        allow_any_permutation(main_of(module), {0})
        remove_marks(module)

    assert rewritten(rewrite, TRANSPOSED) == normalized(TRANSPOSED)


def test_results_without_a_mark_are_left():
    assert rewritten(choose_permutations, TRANSPOSED) == normalized(TRANSPOSED)


def test_a_result_that_is_no_transpose_is_left():
    text = """
func.func public @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %y = stablehlo.tanh %x : tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}
"""

    def rewrite(module, target):
        allow_any_permutation(main_of(module), {0})
        choose_permutations(module, target)

    assert rewritten(rewrite, text) == normalized(text)
