"""Computations of XLA's builder as operators: eager, lazy, compiled, with gradients, and errors."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xla_dynamo
from xla_dynamo.errors import LoweringError, StorageError
from xla_dynamo.xla_builder import (
    JaxCallable,
    Op,
    Shape,
    Type,
    XlaCallable,
    call_jax,
    computation_from_module_proto,
    create_builder,
    create_computation,
    get_computation_hlo,
    mkleaf,
    mkop,
    mkparam,
    mkshape,
    tensor_shape,
    xla_computation_as_func,
)
from xla_dynamo.xla_builder.callables import number_of_known_forms
from xla_dynamo.xla_builder.op_registry import register
from xla_dynamo.xla_builder.shapes import TORCH_DTYPES

PRODUCT = register("product", lambda a, b: a * b)


class Product(torch.autograd.Function):
    """A user's operator with a gradient of operators."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return PRODUCT(a, b)

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return PRODUCT(gradient, b), PRODUCT(gradient, a)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_an_operator_with_a_gradient(device, compiles):
    def loss(a, b):
        return (Product.apply(a, b).sin() * 2).sum()

    a, b = torch.randn(2, 3), torch.randn(2, 3)
    xla_dynamo.device()
    given = [x.to(device).detach().requires_grad_() for x in (a, b)]
    eager = [x.clone().requires_grad_() for x in (a, b)]
    run = torch.compile(loss, backend="openxla", fullgraph=True) if compiles else loss
    found = run(*given)
    found.backward()
    expected = ((eager[0] * eager[1]).sin() * 2).sum()
    expected.backward()
    torch.testing.assert_close(found.cpu(), expected)
    for one, other in zip(given, eager, strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_an_operator_is_lowered_once_for_shapes_and_keywords():
    calls = []

    def lowered(a, scale=1.0):
        calls.append(a.shape().sizes)
        return a * Op.scalar(a.builder(), scale).broadcast(a.shape().sizes), a

    operator = register("scaled", lambda a, **kwargs: Op.tuple(lowered(a, **kwargs)))
    device = xla_dynamo.device()
    for scale in (2.0, 2.0, 3.0):
        x = torch.randn(2, device=device)
        found = operator(x, scale=scale)
        torch.testing.assert_close(found[0].cpu(), x.cpu() * scale)
        torch.testing.assert_close(found[1].cpu(), x.cpu())
    operator(torch.ones(3))
    assert calls == [(2,), (2,), (3,)]
    with pytest.raises(TypeError, match="by keyword"):
        operator(2.0)


def test_results_have_no_gradients_of_their_own():
    x = torch.ones(2, device=xla_dynamo.device(), requires_grad=True)
    assert not PRODUCT(x, x).requires_grad


def test_hlo_and_back():
    def both(a, b):
        return Op.tuple((a + b, a.acos()))

    made = create_computation("Both", both, [mkshape(Type.F32, (2, 3))] * 2)
    text = get_computation_hlo(made)
    assert text.startswith("HloModule Both,")
    assert "f32[2,3]{1,0} add(" in text
    back = computation_from_module_proto("back", made.hlo().as_serialized_hlo_module_proto())
    assert back.result == made.result
    assert back.parameters == made.parameters
    a, b = torch.rand(2, 3), torch.rand(2, 3)
    found = xla_computation_as_func(back)([a, b])
    torch.testing.assert_close(found[0], a + b)
    torch.testing.assert_close(found[1], a.acos())
    assert made.key != back.key
    with pytest.raises(StorageError, match="no HLO module"):
        computation_from_module_proto("wrong", b"nothing")


def test_a_parameter_may_be_a_tuple():
    pair = Shape((mkshape("f32", (2,)), (mkshape("s32", ()), mkshape("f32", (2,)))))

    def nested(p):
        inner = p.get_tuple_element(1)
        return p.get_tuple_element(0) + inner.get_tuple_element(1)

    made = create_computation("Nested", nested, [pair])
    x = torch.ones(2)
    (found,) = xla_computation_as_func(made)([x, torch.tensor(1, dtype=torch.int32), x * 2])
    torch.testing.assert_close(found, x * 3)
    assert pair.tuple_size() == 2
    assert pair.tuple_shape(0) == {"type": "f32", "sizes": (2,)}
    assert str(pair) == "(f32[2], (s32[], f32[2]))"


def test_shapes():
    assert tensor_shape([torch.ones(2, 3, dtype=torch.int8)]) == [mkshape(Type.S8, (2, 3))]
    shape = mkshape("f32", (2, 3), (True, False))
    assert shape.is_dynamic()
    assert shape.dynamic_dimensions == (True, False)
    assert (shape.rank, shape.as_scalar().sizes, shape.dtype) == (2, (), "f32")
    for name, dtype in TORCH_DTYPES.items():
        assert Op.from_torch_type(Op.to_torch_type(name)) == name
        assert Op.to_torch_type(name) is dtype
    with pytest.raises(ValueError, match="not of a tuple"):
        shape.tuple_size()
    with pytest.raises(ValueError, match="one of its elements"):
        assert Shape((shape,)).sizes
    with pytest.raises(ValueError, match="no element type"):
        Op.to_torch_type("f31")
    with pytest.raises(ValueError, match="cast the tensor"):
        tensor_shape(torch.ones(2, dtype=torch.float8_e5m2))


def test_wrong_operations_are_errors():
    builder = create_builder("wrong")
    a = mkparam(builder, 0, mkshape("f32", (2, 3)))
    b = mkparam(builder, 1, mkshape("f32", (4,)))
    n = mkleaf("Iota", builder, shape=mkshape("s32", (2, 3)), iota_dimension=0)
    for call, error, text in (
        (lambda: a + b, ValueError, "one rank"),
        (lambda: a + n, ValueError, "one element type"),
        (lambda: mkop("Nothing", (a.op,)), ValueError, "no operation 'Nothing'"),
        (lambda: mkleaf("Tuple", None), ValueError, "no operand"),
        (lambda: a + mkparam(create_builder("x"), 0, a.shape()), ValueError, "several builders"),
        (lambda: mkparam(builder, 3, a.shape()), ValueError, "2 comes next"),
        (lambda: a.transpose((0, 0)), LoweringError, "permutation"),
        (lambda: a.reshape((5,)), LoweringError, "cannot write Reshape: "),
        (lambda: a.get_tuple_element(0), TypeError, "only tuples"),
        (lambda: a.conv(a, (1, 1), padding="sam"), ValueError, '"same"'),
        (lambda: a.dot(b, precision_config="best"), ValueError, "highest"),
        (
            lambda: mkop("Reduce", (a.op, a.op), computation=1, dimensions=()),
            TypeError,
            "takes a computation",
        ),
        (lambda: Op.map((a,), lambda x: x, (0, 1), (b,)), NotImplementedError, "static operands"),
    ):
        with pytest.raises(error, match=text):
            call()
    size = Op.scalar(builder, 1, "s32") + Op.scalar(builder, 1, "s32")
    with pytest.raises(NotImplementedError, match="static sizes"):
        a.set_dimension_size(size, 1)
    with pytest.raises(ValueError, match="no result"):
        builder.build("nothing", ())
    made = (a + a).build("right")
    with pytest.raises(TypeError, match=r"takes \[f32\[2,3\], f32\[4\]\]"):
        xla_computation_as_func(made)([torch.ones(2, 3)])


def sines(a, others, scale=2, dtype=None):
    """A function of JAX of trees."""
    made = jnp.sin(a) * scale + others["x"]
    return {"sines": made.astype(dtype or made.dtype), "nothing": None, "list": [a]}


@pytest.mark.parametrize("compiles", [False, True])
def test_functions_of_jax(compiles):
    device = xla_dynamo.device()
    x = torch.randn(3)
    a, b = x.to(device).requires_grad_(), torch.ones(3, device=device)

    def call(a, b):
        return call_jax(sines, (a, {"x": b}), {"scale": 3})

    run = torch.compile(call, backend="openxla", fullgraph=True) if compiles else call
    found = run(a, b)
    torch.testing.assert_close(found["sines"].cpu(), torch.sin(x) * 3 + 1)
    assert found["nothing"] is None
    found["sines"].sum().backward()
    torch.testing.assert_close(a.grad.cpu(), torch.cos(x) * 3)


def test_functions_of_jax_are_traced_once_for_a_form():
    x = torch.ones(4, device=xla_dynamo.device())
    before = number_of_known_forms()
    for given, scale in ((x, 2), (x + 1, 2), (x, 3), (torch.ones(5, device="xla"), 3), (x, 3)):
        call_jax(sines, (given, {"x": given}), {"scale": scale})
    assert number_of_known_forms() == before + 3


def test_functions_of_jax_that_make_arrays():
    xla_dynamo.device()
    made = call_jax(lambda: jnp.arange(3) + jnp.ones(3), ())
    assert (made.device.type, made.dtype) == ("xla", torch.float32)
    ones = torch.ones(3, dtype=torch.int64)
    assert call_jax(lambda x: x + jnp.arange(3), (ones,)).dtype is torch.int64
    found = call_jax(jnp.add, (ones, np.arange(3)))
    torch.testing.assert_close(found, ones + torch.arange(3))
    for number in range(3):
        given = {"override_hash": "one for all"} if number else {}
        found = call_jax(lambda x, n=number: x + max(n, 1), (ones,), **given)
        torch.testing.assert_close(found, ones + 1)


def test_callables():
    device = xla_dynamo.device()
    a, b = torch.randn(3, device=device), torch.ones(3, device=device)
    of_xla = XlaCallable(lambda a, b, n=1: {"made": a * b["x"] + a.scalar_like(n)})
    of_jax = JaxCallable(sines)
    for n in (4, 5, 4):
        torch.testing.assert_close(of_xla(a, {"x": b}, n=n)["made"].cpu(), a.cpu() + n)
        found = of_jax(a, {"x": b}, scale=n, dtype=torch.float16)["sines"].cpu()
        torch.testing.assert_close(found, (torch.sin(a.cpu()) * n + 1).half())
    assert (len(of_xla._cache), len(of_jax._cache)) == (2, 2)
