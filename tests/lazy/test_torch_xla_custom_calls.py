"""Custom calls, notes and marks of PyTorch/XLA, and kernels that users register for "XLA"."""

import jax.numpy as jnp
import pytest
import torch

from xla_dynamo.stablehlo import exported_program_to_stablehlo
from xla_dynamo.torch_xla.forms import composite_marks
from xla_dynamo.torch_xla.kernels import custom_calls, quantize  # noqa: F401 - defines operators
from xla_dynamo.torch_xla.kernels.user_kernels import take_kernels_for_xla
from xla_dynamo.xla_builder import call_jax


def compiled(function):
    return torch.compile(function, backend="openxla", fullgraph=True)


def on_device(*tensors):
    return [x.to("xla") for x in tensors]


# --- custom calls --------------------------------------------------------------------------------


class _Noted(torch.nn.Module):
    def forward(self, x, y):
        x = custom_calls.write_mlir_debuginfo(x + y, "MY_ADD")
        return custom_calls.stablehlo_custom_call(
            (custom_calls.place_to_host(x),),
            "mine",
            [[3], [2, 2]],
            [torch.int8, torch.float32],
            True,
            "settings",
            1,
            {"a": "b"},
        )[1]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own code
def test_custom_calls_and_notes_are_exported():
    exported = torch.export.export(_Noted(), (torch.ones(5), torch.ones(5)))
    text = exported_program_to_stablehlo(exported).get_stablehlo_text()
    lines = {line.split()[2]: line for line in text.splitlines() if " = stablehlo" in line}
    assert lines["stablehlo.add"].endswith('"MY_ADD"')
    call = lines["stablehlo.custom_call"]
    for part in ("@mine", '"settings"', "has_side_effect = true", '{a = "b"}', "tensor<2x2xf32>"):
        assert part in call
    (node,) = [n for n in exported.graph.nodes if "custom_call" in str(n.target)]
    shapes, dtypes = custom_calls.extract_custom_call_outputs_shape_dtype(node)
    assert [tuple(s) for s in shapes] == [(3,), (2, 2)]
    assert dtypes == [torch.int8, torch.float32]
    with pytest.raises(NotImplementedError, match="eager torch has no mine"):
        _Noted()(torch.ones(5), torch.ones(5))


def test_placements_pass_values_and_gradients():
    x = torch.randn(4, requires_grad=True)
    there = x.detach().to("xla").requires_grad_()

    def f(x):
        moved = custom_calls.place_to_device(custom_calls.place_to_host(x) * 2)
        return custom_calls.write_mlir_debuginfo(moved, "note").sin()

    wanted = torch.autograd.grad((x * 2).sin().sum(), x)
    for function in (f, compiled(f)):
        for given in (x, there):
            (found,) = torch.autograd.grad(function(given).sum(), given)
            torch.testing.assert_close(found.cpu(), wanted[0])
    assert custom_calls.place_to_host(None) is None
    assert custom_calls.place_to_device(None) is None


def test_marks_of_composites():
    attributes = composite_marks.serialize_composite_attr({"a": 1})
    assert composite_marks.deserialize_composite_attr(attributes) == {"a": 1}
    with pytest.raises(ValueError, match="numbers, bools, texts"):
        composite_marks.serialize_composite_attr({"a": object()})
    x = torch.ones(2)
    torch.testing.assert_close(composite_marks.mark_tensor(x, "n", 0, "i", False, attributes), x)
    mark = composite_marks.BoundaryMetadata("n", 0, "i")
    text = composite_marks.BoundaryMetadataSerializer().encode(mark)
    assert text == '{"name": "n", "pos": 0, "id": "i", "is_input": true, "attr": null}'


# --- kernels of users ----------------------------------------------------------------------------

take_kernels_for_xla()
_mine = torch.library.Library("kernels_of_xla", "FRAGMENT")
_mine.define("scaled(Tensor x, float factor, Tensor? y=None, *, Tensor? z=None) -> Tensor")


@torch.library.impl(_mine, "scaled", "CompositeExplicitAutograd")
def _anywhere(x, factor, y=None, *, z=None):
    return torch.empty_like(x)


@torch.library.impl(_mine, "scaled", "XLA")
def _on_xla(x, factor, y=None, *, z=None):
    made = call_jax(jnp.sin, (x * factor,))
    return made if y is None else made + y + z


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own code
def test_kernels_for_xla_run_on_the_device_and_in_programs():
    x, y = torch.randn(3), torch.ones(3)
    torch.testing.assert_close(
        torch.ops.kernels_of_xla.scaled(x.to("xla"), 2.0).cpu(), (2 * x).sin()
    )

    def f(x, y):
        return torch.ops.kernels_of_xla.scaled(x, 2.0, y, z=y) + 1

    expected = (2 * x).sin() + 3
    torch.testing.assert_close(compiled(f)(*on_device(x, y)).cpu(), expected)
    torch.testing.assert_close(compiled(f)(x, y), expected)  # eager has nothing to compute it with

    class Model(torch.nn.Module):
        def forward(self, x, y):
            return f(x, y)

    exported = torch.export.export(Model(), (x, y))
    torch.testing.assert_close(exported_program_to_stablehlo(exported)(x, y), expected)


def test_operators_of_quantized_decomposed_run_on_the_device():
    x, scale, zero = torch.randn(4, 5), torch.rand(5) + 0.1, torch.randint(-3, 3, (5,))
    op = torch.ops.quantized_decomposed.quantize_per_channel
    wanted = op(x, scale, zero, 1, -128, 127, torch.int8)
    found = op(*on_device(x, scale, zero), 1, -128, 127, torch.int8)
    torch.testing.assert_close(found.cpu(), wanted)
