"""PyTorch/XLA's other kernels: groups, 8 bits, functions of JAX, pure functions."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl

import xla_dynamo
from xla_dynamo.spmd import HybridMesh, Mesh
from xla_dynamo.torch_xla.forms import pure_functions
from xla_dynamo.torch_xla.forms.profiler import Trace, trace_me
from xla_dynamo.torch_xla.kernels import grouped_matmul, quantize
from xla_dynamo.torch_xla.kernels.jax_functions import (
    convert_torch_dtype_to_jax,
    j2t_autograd,
    jax_import_guard,
    make_kernel_from_pallas,
    requires_jax,
    to_jax_shape_dtype_struct,
    trace_pallas,
)
from xla_dynamo.torch_xla.kernels.quantized_matmul import XlaQuantizedLinear
from xla_dynamo.xla_builder import call_jax


def compiled(function):
    return torch.compile(function, backend="openxla", fullgraph=True)


def on_device(*tensors):
    return [None if x is None else x.detach().to("xla") for x in tensors]


# --- groups --------------------------------------------------------------------------------------

SIZES = torch.tensor([3, 0, 5, 4], dtype=torch.int32)


def of_groups(lhs, rhs, first):
    """Each group's rows times its matrix; the first matrix is that of a group."""
    parts = lhs.split(SIZES.tolist())
    made = [x.new_zeros(len(x), rhs.shape[2]) for x in parts]
    for i, matrix in enumerate(rhs):
        made[first + i] = parts[first + i] @ matrix
    return torch.cat(made)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("first", "count"), [(None, 4), (None, 2), (1, 2)])
def test_products_of_groups(dtype, first, count):
    lhs = torch.randn(12, 8, dtype=dtype, requires_grad=True)
    rhs = torch.randn(count, 8, 6, dtype=dtype, requires_grad=True)
    expected = of_groups(lhs, rhs, first or 0)
    wanted = torch.autograd.grad((expected**2).sum(), (lhs, rhs))
    offset = None if first is None else torch.tensor([first])
    (sizes, there), inputs = on_device(SIZES, offset), on_device(lhs, rhs)
    for x in inputs:
        x.requires_grad_()
    close = {"rtol": 0.02, "atol": 0.1} if dtype is torch.bfloat16 else {}
    for function in (grouped_matmul.gmm, compiled(torch.ops.xla.gmm)):
        actual = function(*inputs, sizes, None, there)
        torch.testing.assert_close(actual.cpu(), expected, **close)
        found = torch.autograd.grad((actual**2).sum(), inputs)
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(other.cpu(), one, **close)
    turned = grouped_matmul.gmm(inputs[0], inputs[1].mT, sizes, None, there, True)
    torch.testing.assert_close(turned.cpu(), expected, **close)
    grads = grouped_matmul.tgmm(
        inputs[0].mT, 2 * actual, sizes, group_offset=there, num_actual_groups=count
    )
    torch.testing.assert_close(grads.cpu(), wanted[1], **close)
    torch.testing.assert_close(  # eager torch on the CPU
        grouped_matmul.gmm(lhs, rhs, SIZES, None, offset), expected, **close
    )


def test_gradients_of_groups_have_gradients():
    lhs, rhs = torch.randn(12, 3).double(), torch.randn(4, 3, 2).double()
    inputs = [x.requires_grad_() for x in (lhs, rhs)]
    assert torch.autograd.gradgradcheck(
        lambda x, y: grouped_matmul.GMM.apply(x, y, SIZES).sin(), inputs
    )
    grad = torch.randn(12, 2).double()
    found = grouped_matmul.gmm_backward(grad, lhs, rhs, SIZES)
    wanted = torch.autograd.grad(of_groups(lhs, rhs, 0), inputs, grad)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one)


def test_products_of_groups_say_what_does_not_fit():
    with pytest.raises(ValueError, match="gmm takes lhs"):
        grouped_matmul.gmm(torch.ones(3, 4), torch.ones(2, 5, 6), SIZES)
    with pytest.raises(ValueError, match="tgmm takes lhs"):
        grouped_matmul.tgmm(torch.ones(3, 4), torch.ones(3, 6), SIZES)


def test_the_tiles_of_the_kernel_for_tpu_fit_it():
    assert grouped_matmul._tiles(64, 8, 100, 3000) == (64, 128, 2048)
    assert grouped_matmul._tiles(4096, 8, 6144, 2560) == (512, 2048, 1280)


def test_repetitions_have_a_fixed_size():
    x, repeats = torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 0, 2])
    for size, expected in ((3, [6, 6, 6]), (5, [6, 6, 6, 8, 8]), (7, [6, 6, 6, 8, 8, 8, 8])):
        made = grouped_matmul.repeat_with_fixed_output_size(*on_device(x, repeats), size)
        assert made.tolist() == expected
    with pytest.raises(ValueError, match="one dimension"):
        grouped_matmul.repeat_with_fixed_output_size(x[None], repeats, 3)


# --- 8 bits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("form", ["channels", "blocks", "activations"])
def test_quantized_products(form, is_symmetric):
    x = torch.randn(3, 4, 10)
    x[0, 0] = 0
    shape, of_scale = ((2, 5, 6), (2, 6)) if form == "blocks" else ((6, 10), (6,))
    weight = torch.randint(-8, 8, shape, dtype=torch.int8)
    scale, zero = torch.rand(of_scale), None if is_symmetric else torch.rand(of_scale)
    dims = 1 if form == "blocks" else -1
    matrix = weight * scale.unsqueeze(dims) - (0 if zero is None else zero.unsqueeze(dims))
    expected = x @ (matrix.reshape(10, 6) if form == "blocks" else matrix.T)
    layer = XlaQuantizedLinear(
        10,
        6,
        is_symmetric,
        5 if form == "blocks" else -1,
        quantize_activation=form == "activations",
    )
    layer.load_quantized_weight(weight, scale, zero)
    within = 0.02 * float(expected.abs().max()) if form == "activations" else 1e-4
    there = layer.to("xla")
    for function in (there, compiled(there)):
        torch.testing.assert_close(function(x.to("xla")).cpu(), expected, rtol=0, atol=within)
    if form != "blocks":
        given = on_device(x[1].bfloat16(), weight, scale, zero)
        made = torch.ops.xla.quantized_matmul_int8(
            *given, quantize_activation=form == "activations"
        )
        assert made.dtype is torch.bfloat16
        torch.testing.assert_close(made.cpu().float(), expected[1], rtol=0.05, atol=0.5)


def test_quantized_products_say_what_does_not_fit():
    x, scale, op = torch.ones(2, 4), torch.ones(3), torch.ops.xla.quantized_matmul
    weight = torch.ones(3, 4, dtype=torch.int8)
    with pytest.raises(ValueError, match="of int8"):
        op(x, weight.float(), scale)
    with pytest.raises(ValueError, match="asks for"):
        op(x, weight.T, scale)
    with pytest.raises(ValueError, match="do not divide"):
        op(x, weight, scale, block_size=3)
    with pytest.raises(ValueError, match="zero_point is"):
        op(x, weight, scale, scale[:2])
    with pytest.raises(ValueError, match="has no blocks"):
        op(x, weight.reshape(2, 2, 3), torch.ones(2, 3), block_size=2, quantize_activation=True)
    with pytest.raises(ValueError, match="has no blocks"):
        torch.ops.xla.quantized_matmul_int8(x, weight, scale, None, scale)


def test_quantization():
    x, scale, zero = torch.randn(4, 5), torch.rand(5) + 0.1, torch.randint(-3, 3, (5,))
    limits = (-128, 127, torch.int8)
    found = quantize.xla_quantize_per_channel(*on_device(x, scale, zero), 1, *limits)
    wanted = torch.clamp(torch.round(x / scale) + zero, -128, 127).to(torch.int8)
    torch.testing.assert_close(found.cpu(), wanted)
    back = quantize.xla_dequantize_per_tensor(found, *on_device(scale, zero), 1, *limits)
    torch.testing.assert_close(back.cpu(), (wanted - zero) * scale)
    found = quantize.xla_quantize_per_tensor(x.to("xla"), 0.01, 3, *limits)
    wanted = torch.clamp(torch.round(x / 0.01) + 3, -128, 127).to(torch.int8)
    torch.testing.assert_close(found.cpu(), wanted)
    assert quantize.xla_dequantize_per_tensor(found, 0.01, 3).dtype is torch.float32
    with pytest.raises(ValueError, match="5 for dimension 1"):
        quantize.xla_quantize_per_channel(x, scale[:3], zero, 1, *limits)


# --- functions of JAX ----------------------------------------------------------------------------


def _add(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] + 2 * y_ref[...]


def _added(x, y):
    return pl.pallas_call(_add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def test_kernels_of_pallas():
    kernel = make_kernel_from_pallas(_added, lambda x, y: [(x.shape, x.dtype)])
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        x = torch.arange(8, dtype=dtype)
        for function in (kernel, compiled(lambda a, b: kernel(a, b) + 0)):
            torch.testing.assert_close(function(x, x), 3 * x)
            torch.testing.assert_close(function(x.to("xla"), x.to("xla")).cpu(), 3 * x)
    wrong = make_kernel_from_pallas(_added, lambda x, y: [(x.shape, torch.int8)])
    with pytest.raises(ValueError, match="output_shape_dtype_fn says"):
        wrong(x, x)
    code, tensors = trace_pallas(_added, torch.ones(8, 128), torch.ones(8, 128))
    assert "custom_call_config" in code
    assert len(tensors) == 2
    assert trace_pallas(jnp.sin, torch.ones(3))[0] is None


def _mixed(x, factor, tree, *, dtype, flag=False):
    assert flag is True
    return {"all": [x * factor + tree["more"][0], (x > 0).astype(dtype)], "none": None}


def test_functions_of_jax_take_trees_and_numbers():
    here = torch.randn(3, requires_grad=True)
    there = here.detach().to("xla").requires_grad_()
    arguments = {"dtype": torch.bfloat16, "flag": True}
    for call in (call_jax, compiled(call_jax)):
        made = call(_mixed, (there, 2.0, {"more": [there]}), arguments)
        torch.testing.assert_close(made["all"][0].cpu(), 3 * here)
        torch.testing.assert_close(made["all"][1].cpu(), (here > 0).bfloat16())
        assert made["none"] is None
        (found,) = torch.autograd.grad(made["all"][0].sum(), there)
        torch.testing.assert_close(found.cpu(), torch.full((3,), 3.0))
    made = call_jax(lambda x, n: x * n, (there, 3), None, "name", "key")
    again = call_jax(lambda x, n: x * n + 1, (there, 3), override_hash="key")  # the first one
    torch.testing.assert_close(made.cpu(), again.cpu())
    wide = call_jax(lambda x: jnp.arange(3) + x, (torch.ones(3, dtype=torch.int64),))
    assert wide.dtype is torch.int64
    assert call_jax(lambda x: jnp.arange(3), (here,)).dtype is torch.int32  # as JAX has it
    torch.testing.assert_close(j2t_autograd(jnp.sin)(there).cpu(), here.sin())


def test_jax_may_be_imported_at_any_time():
    assert jax_import_guard() is None
    assert requires_jax(_add) is _add
    assert convert_torch_dtype_to_jax(torch.bfloat16) == jnp.bfloat16
    struct = to_jax_shape_dtype_struct(torch.ones(2, 3, dtype=torch.int8))
    assert (struct.shape, struct.dtype) == ((2, 3), jnp.int8)


def test_a_mesh_is_read_from_its_text():
    for mesh in (Mesh(range(8), (2, 4), ("a", "b")), Mesh([1, 0], (2,))):
        assert Mesh.from_str(str(mesh)) == mesh
    hybrid = HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1), axis_names=("a", "b"))
    assert Mesh.from_str(str(hybrid)) == hybrid
    for text in ("None", "", "Mesh(a=x)", "f(a=2)", "Mesh(a=2, device_ids=(0, 0))"):
        assert Mesh.from_str(text) is None


# --- pure functions ------------------------------------------------------------------------------


def test_pure_modules_and_functions():
    layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval().to("xla")
    pure, x = pure_functions.PureModule(layer), torch.randn(2, 3, device="xla")
    torch.testing.assert_close(pure(x).cpu(), layer(x).cpu())
    pure(x).sum().backward()
    found = layer[0].weight.grad.clone()
    layer.zero_grad()
    layer(x).sum().backward()
    torch.testing.assert_close(found.cpu(), layer[0].weight.grad.cpu())
    with pytest.raises(RuntimeError, match="no_grad"):
        pure_functions.assume_pure_torch(torch.sin)
    with torch.no_grad():
        function = pure_functions.assume_pure_torch(torch.sin)
    weight = x.clone().requires_grad_()
    assert not function(weight).requires_grad
    torch.testing.assert_close(function(weight).cpu(), x.cpu().sin())


def test_a_seed_is_an_argument_of_a_pure_function():
    function = pure_functions.assume_pure(
        lambda x: x + torch.randn_like(x), add_rng_seed_argument=True
    )
    for x in (torch.zeros(8), torch.zeros(8, device="xla")):
        before = xla_dynamo.get_rng_state(), torch.get_rng_state()
        first, again, other = (function(x, rng_seed=seed).cpu() for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        after = xla_dynamo.get_rng_state(), torch.get_rng_state()
        assert all(map(torch.equal, before, after))
    with pytest.raises(TypeError, match="rng_seed"):
        function(x)


def test_parameters_of_lowered_functions():
    fakes = [pure_functions.make_fake_inputs(x) for x in (torch.ones(2), 3, torch.ones(4).int())]
    assert fakes[1] == 3
    assert (fakes[2].device.type, fakes[2].dtype, fakes[2].shape) == ("xla", torch.int32, (4,))
    captured = torch.ones(1)

    class Lowered:
        def device_parameter_id_tensor_mapping(self):
            return {0: fakes[2], 1: captured, 2: fakes[0]}

        def tensor_parameter_id(self, tensor):
            return {id(fakes[2]): 0, id(fakes[0]): 2}.get(id(tensor), -1)

    real = [torch.zeros(2), 3, torch.zeros(4)]
    inputs, others, places = pure_functions.prepare_computation_inputs(Lowered(), fakes, real)
    assert inputs[0] is real[2]
    assert inputs[1] is captured is others[1]
    assert inputs[2] is real[0]
    assert places == {2: 0, 0: 2}


def test_names_for_the_profiler_do_not_keep_a_function_from_being_compiled():
    @trace_me("all of it")
    def f(x):
        with Trace("inside"):
            return x.sin()

    x = torch.randn(3, device="xla")
    torch.testing.assert_close(pure_functions.assume_pure(f)(x).cpu(), f(x).cpu())
