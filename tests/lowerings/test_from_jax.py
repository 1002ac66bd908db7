"""JAX functions as rules: what may be traced, under which names it is inlined, and how fast."""

import operator
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.execution.compile_graph import compile_graph
from xla_dynamo.lowerings import TABLE, Context
from xla_dynamo.lowerings.builders.build import is_value
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.target import Target


def marker(*args):
    """Stands for an operator in the graphs of `run`."""


@pytest.fixture
def run(monkeypatch):
    """Compile and call a rule's body, body(ctx, *values), on tensors; `out` are fake results."""

    def run(body, tensors, out):
        graph = torch.fx.Graph()
        inputs = [graph.placeholder(f"x{i}") for i in range(len(tensors))]
        for node, tensor in zip(inputs, tensors, strict=True):
            node.meta["val"] = tensor
        call = graph.call_function(marker, tuple(inputs))
        call.meta["val"] = tuple(t for t in out)
        parts = []
        for i, t in enumerate(out):
            part = graph.call_function(operator.getitem, (call, i))
            part.meta["val"] = t
            parts.append(part)
        graph.output(tuple(parts))

        def rule(ctx, *values):
            result = body(ctx, *values)
            return (result,) if is_value(result) else tuple(result)

        monkeypatch.setitem(TABLE, str(marker), rule)
        gm = torch.fx.GraphModule({}, graph)
        return compile_graph(gm, list(tensors))(*tensors)

    return run


def emit(body, *shapes, platform="cpu", dtype=torch.float32):
    """The module after a body has been emitted in its main function."""
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.create()
        kept = {}, lambda: None, set(), set()
        ctx = Context(None, (), Target(platform), module, *kept, False, None)
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ([tensor_type(s, dtype) for s in shapes], []))
        with ir.InsertionPoint(main.add_entry_block()):
            body(ctx, *main.arguments)
            func.ReturnOp([])
        assert module.operation.verify()
        return str(module)


def scaled(x, *, factor):
    return x * factor


def joined(x, *, sizes, names):
    assert isinstance(sizes, list)
    return x.reshape(sizes) * len(names["keys"])


class Pair(NamedTuple):
    total: jax.Array
    largest: jax.Array


def pair(x):
    return Pair(jnp.sum(x), jnp.max(x))


def test_functions_are_kept_by_function_shapes_and_static_arguments():
    def body(ctx, x, y):
        for value in (x, y):
            for factor in (2, 2, 2.0, True, -0.0, 0.0):
                call_jax(ctx, scaled, value, factor=factor)
        assert len(ctx.functions) == 10

    text = emit(body, (3,), (4,))
    assert text.count("func.func private") == 10
    assert text.count("call @") == 12


def test_static_lists_and_dicts(run):
    x = torch.arange(6.0)
    (out,) = run(
        lambda ctx, x: call_jax(ctx, joined, x, sizes=[2, 3], names={"keys": ["a", "b"]}),
        [x],
        [torch.empty(2, 3)],
    )
    torch.testing.assert_close(out, 2 * x.view(2, 3))


def test_a_static_array_is_refused():
    with pytest.raises(TypeError, match="unhashable"):
        emit(lambda ctx, x: call_jax(ctx, scaled, x, factor=np.ones(3)), (3,))


def test_named_tuples_come_back(run):
    def body(ctx, x):
        result = call_jax(ctx, pair, x)
        assert isinstance(result, Pair)
        return result.largest, result.total

    x = torch.randn(5)
    largest, total = run(body, [x], [torch.empty(()), torch.empty(())])
    torch.testing.assert_close((largest, total), (x.max(), x.sum()))


def twice_inverted(x):
    return jnp.linalg.inv(jnp.linalg.inv(x))


def test_inner_functions_of_two_callers_do_not_clash(run):
    def body(ctx, x):
        return call_jax(ctx, twice_inverted, x), call_jax(ctx, jnp.linalg.inv, x)

    x = torch.randn(4, 4) + 4 * torch.eye(4)
    same, inverse = run(body, [x], [x, x])
    torch.testing.assert_close(same, x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(inverse, torch.linalg.inv(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex128, torch.bfloat16])
def test_types_are_not_narrowed(run, dtype):
    x = torch.ones(3, dtype=dtype)
    (out,) = run(lambda ctx, x: call_jax(ctx, scaled, x, factor=3), [x], [x])
    assert out.dtype is dtype
    torch.testing.assert_close(out, 3 * x)


def eigenvalues(x):
    return jax.lax.linalg.eigh(x)[1]


def test_custom_call_with_layouts(run):
    x = torch.randn(2, 3, 3)
    x = x + x.mT
    (out,) = run(lambda ctx, x: call_jax(ctx, eigenvalues, x), [x], [x[..., 0]])
    torch.testing.assert_close(out, torch.linalg.eigvalsh(x), rtol=1e-4, atol=1e-4)


def logs(x):
    return jax.lax.erf_inv(x), jax.lax.lgamma(x + 2), jax.lax.top_k(x, 2)[0]


def test_chlo_operations(run):
    x = torch.tensor([-0.5, 0.25, 0.75])
    inverse, gamma, top = run(lambda ctx, x: call_jax(ctx, logs, x), [x], [x, x, x[:2]])
    torch.testing.assert_close(inverse, torch.erfinv(x))
    torch.testing.assert_close(gamma, torch.lgamma(x + 2))
    torch.testing.assert_close(top, torch.topk(x, 2).values)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_zero_size_operands(run, shape):
    x = torch.empty(shape)
    (out,) = run(lambda ctx, x: call_jax(ctx, scaled, x, factor=2.0), [x], [x])
    assert out.shape == x.shape


TABLE_OF_SQUARES = np.arange(5000.0) ** 2


def shifted(x):
    return x + TABLE_OF_SQUARES


def test_large_constants_are_inlined_whole(run):
    x = torch.zeros(5000, dtype=torch.float64)
    (out,) = run(lambda ctx, x: call_jax(ctx, shifted, x), [x], [x])
    torch.testing.assert_close(out, torch.from_numpy(TABLE_OF_SQUARES))


def test_unused_operands_stay_operands():
    def first(x, y):
        return x

    text = emit(lambda ctx, x, y: call_jax(ctx, first, x, y), (3,), (4,))
    assert "call @first_0(%arg0, %arg1)" in text


def test_a_platform_that_is_not_the_default_backend():
    text = emit(lambda ctx, x: call_jax(ctx, eigenvalues, x), (4, 4), platform="cuda")
    assert "cusolver" in text
    assert "lapack" not in text


def test_the_user_promotion_settings_do_not_leak_in(run):
    def mixed(x, y):
        return x + y

    x, y = torch.ones(2), torch.ones(2, dtype=torch.int32)
    with jax.numpy_dtype_promotion("strict"):
        (out,) = run(lambda ctx, x, y: call_jax(ctx, mixed, x, y), [x, y], [x])
    torch.testing.assert_close(out, torch.full((2,), 2.0))


def test_equal_programs_have_equal_text():
    def deep():
        return emit(lambda ctx, x: call_jax(ctx, eigenvalues, x), (4, 4))

    assert deep() == emit(lambda ctx, x: call_jax(ctx, eigenvalues, x), (4, 4))


def test_a_function_traced_before_is_inlined_quickly():
    emit(lambda ctx, x: call_jax(ctx, twice_inverted, x), (4, 4))
    taken = []

    def body(ctx, x):
        start = time.perf_counter()
        call_jax(ctx, twice_inverted, x)
        taken.append(time.perf_counter() - start)

    for _ in range(5):
        emit(body, (4, 4))
    assert min(taken) < 0.03  # 2 ms on an idle machine; tracing anew takes 40


def test_a_function_traced_before_is_not_traced_again():
    traced = []

    def counted(x):
        traced.append(x.shape)
        return twice_inverted(x)

    for _ in range(3):
        emit(lambda ctx, x: call_jax(ctx, counted, x), (4, 4))
    assert traced == [(4, 4)]
    emit(lambda ctx, x: call_jax(ctx, counted, x), (3, 3))
    assert traced == [(4, 4), (3, 3)]
