"""What depends on parameters alone goes into a module of its own."""

import pytest

from tests.lowerings.passes.rewriting import CPU, GPU, normalized, parsed
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.passes.freeze import freeze

SCALED = """
func.func public @main(%x: tensor<4xf32>, %w: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %e = stablehlo.exponential %w : tensor<4xf32>
  %scale = stablehlo.add %e, %one : tensor<4xf32>
  %p = stablehlo.multiply %x, %scale : tensor<4xf32>
  %y = stablehlo.add %p, %b : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def cut_out(text, roots, known=(), target=CPU):
    """What was cut out, and both modules as text: that of the function, and the new one."""
    with parsed(text) as module:
        cut = freeze(main_of(module), roots, known, target)
        assert module.operation.verify()
        if cut is None or cut.module is None:
            return cut, str(module), None
        assert cut.module.operation.verify()
        return cut, str(module), str(cut.module)


def check_left(text, roots, target=CPU):
    cut, after, _ = cut_out(text, roots, target=target)
    assert cut is None
    assert after == normalized(text)


def test_a_scale_is_cut_out_of_what_reads_the_input():
    """%w is used no more; %b still is, as it stands. The constant is in the new module."""
    cut, after, frozen = cut_out(SCALED, [1, 2])
    assert after == normalized("""
func.func public @main(%x: tensor<4xf32>, %b: tensor<4xf32>, %scale: tensor<4xf32>)
    -> tensor<4xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %p = stablehlo.multiply %x, %scale : tensor<4xf32>
  %y = stablehlo.add %p, %b : tensor<4xf32>
  return %y : tensor<4xf32>
}
""")
    assert frozen == normalized("""
func.func public @main(%w: tensor<4xf32>) -> tensor<4xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %e = stablehlo.exponential %w : tensor<4xf32>
  %scale = stablehlo.add %e, %one : tensor<4xf32>
  return %scale : tensor<4xf32>
}
""")
    assert cut.arguments == [1]
    assert cut.unused == {1}
    assert cut.computed == cut.keys
    assert len(cut.keys) == 1


def test_a_known_value_is_not_computed():
    keys = cut_out(SCALED, [1, 2])[0].keys
    cut, after, frozen = cut_out(SCALED, [1, 2], known=keys)
    assert frozen is None
    assert cut.keys == keys
    assert cut.computed == cut.arguments == []
    assert after == cut_out(SCALED, [1, 2])[1]


def test_keys_are_of_values():
    """The same whatever uses the value, and another for another computation."""
    used_otherwise = SCALED.replace("multiply %x", "subtract %x")
    keys = [cut_out(text, [1, 2])[0].keys for text in (SCALED, used_otherwise)]
    assert keys[0] == keys[1]
    assert cut_out(SCALED.replace("exponential", "tanh"), [1, 2])[0].keys != keys[0]
    assert cut_out(SCALED.replace("<1.0>", "<2.0>"), [1, 2])[0].keys != keys[0]


def of_weight(body, dtype="4x6xf32"):
    """A function whose result is made of an input and of %v, which a body makes of a parameter."""
    return f"""
func.func public @main(%x: tensor<{dtype}>, %w: tensor<6x4xf32>) -> tensor<{dtype}> {{
  {body}
  %y = stablehlo.add %x, %v : tensor<{dtype}>
  return %y : tensor<{dtype}>
}}
"""


TRANSPOSE = "stablehlo.transpose %w, dims = [1, 0] : (tensor<6x4xf32>) -> tensor<4x6xf32>"
TRANSPOSE_OF_TANH = TRANSPOSE.replace("%w", "%tanh")


def test_views_are_left():
    check_left(of_weight(f"%v = {TRANSPOSE}"), [1])


def test_the_source_of_a_view_is_kept():
    """And the view stays with what reads the input."""
    body = f"%tanh = stablehlo.tanh %w : tensor<6x4xf32>\n  %v = {TRANSPOSE_OF_TANH}"
    _, after, frozen = cut_out(of_weight(body), [1])
    assert "stablehlo.transpose" in after
    assert "stablehlo.tanh" not in after
    assert "stablehlo.transpose" not in frozen


def test_what_grows_is_left():
    """512 KB of 96 bytes: more than twice as much, and not small."""
    body = """%wide = stablehlo.broadcast_in_dim %w, dims = [1, 2]
      : (tensor<6x4xf32>) -> tensor<5462x6x4xf32>
  %v = stablehlo.tanh %wide : tensor<5462x6x4xf32>"""
    check_left(of_weight(body, "5462x6x4xf32"), [1])
    small = of_weight(body, "5462x6x4xf32").replace("5462", "50")
    assert cut_out(small, [1])[0] is not None


@pytest.mark.parametrize(
    "operation",
    [
        "stablehlo.custom_call @kernel(%w) : (tensor<6x4xf32>) -> tensor<4x6xf32>",
        "stablehlo.rng %low, %high, %shape, distribution = UNIFORM"
        " : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<4x6xf32>",
    ],
    ids=["custom_call", "rng"],
)
def test_what_has_effects_is_left(operation):
    constants = """%low = stablehlo.constant dense<0.0> : tensor<f32>
  %high = stablehlo.constant dense<1.0> : tensor<f32>
  %shape = stablehlo.constant dense<[4, 6]> : tensor<2xi64>
  """
    check_left(of_weight(f"{constants}%v = {operation}"), [1])


def test_statistics_are_frozen_on_the_cpu_alone():
    """A vector of floats may be a running statistic, whose changes are noticed there only."""
    check_left(SCALED, [1, 2], target=GPU)


def test_functions_go_with_their_calls():
    text = (
        of_weight("%v = func.call @f(%w) : (tensor<6x4xf32>) -> tensor<4x6xf32>")
        + f"""
func.func private @f(%w: tensor<6x4xf32>) -> tensor<4x6xf32> {{
  %t = {TRANSPOSE}
  return %t : tensor<4x6xf32>
}}
"""
    )
    cut, after, frozen = cut_out(text, [1])
    assert "call @f" in frozen
    assert "func.func private @f" in frozen
    assert "call @f" not in after
    other = text.replace("dims = [1, 0]", "dims = [1, 0] {note}")
    assert cut_out(other, [1])[0].keys != cut.keys
