"""Each operation of XLA's builder gives what torch gives."""

import pytest
import torch

import xla_dynamo
from xla_dynamo.xla_builder import Op, create_computation, mkop, mkshape, tensor_shape
from xla_dynamo.xla_builder.table import OPERATIONS
from xla_dynamo.xla_builder.user_computation import xla_computation_as_func

torch.manual_seed(0)
X, Y = torch.randn(2, 3), torch.rand(2, 3) + 0.5
N, M = torch.tensor([[5, -7, 12], [3, 0, -1]]), torch.tensor([[3, 2, -5], [1, 4, 2]])
C = torch.randn(2, 3, dtype=torch.complex64)
V, AT = torch.tensor([3.0, -1.0, 2.0, 0.5]), torch.tensor([2, 0], dtype=torch.int32)
IMAGES, KERNEL = torch.randn(2, 4, 7, 6), torch.randn(5, 4, 3, 2)
GROUPED = torch.randn(8, 2, 3, 2)
NUMBERS = {  # of images with features last, and kernels with features last
    "input_batch_dimension": 0,
    "input_feature_dimension": 3,
    "kernel_input_feature_dimension": 2,
    "kernel_output_feature_dimension": 3,
    "output_batch_dimension": 0,
    "output_feature_dimension": 3,
    "input_spatial_dimensions": (1, 2),
    "kernel_spatial_dimensions": (0, 1),
    "output_spatial_dimensions": (1, 2),
}


def conv(*args, **kwargs):
    return torch.nn.functional.conv2d(*args, **kwargs)


def last(x):
    return x.permute(0, 2, 3, 1)


def number(op, value):
    return Op.scalar(op.builder(), value, op.shape().dtype)


def add(a, b):
    return a + b


UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf",
    "erfc", "erfinv", "exp", "expm1", "floor", "log", "log1p", "neg",
    "rsqrt", "sin", "sinh", "sqrt", "square", "tan", "tanh", "real",
    "conj",
)  # fmt: skip
ONE = {"conj": lambda x: x.clone(), "real": lambda x: x.clone()}

FLOATS = {
    **{
        name: (
            lambda x, y, n=name: getattr(y * number(y, 0.5), n)()
            if n != "neg"
            else -(y * number(y, 0.5)),
            lambda x, y, n=name: ONE.get(n, getattr(torch, n))(y * 0.5),
        )
        for name in UNARY
    },
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "sub": (lambda x, y: x - y, lambda x, y: x - y),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "div": (lambda x, y: x / y, lambda x, y: x / y),
    "pow": (lambda x, y: y**x, lambda x, y: y**x),
    "rem": (lambda x, y: x % y, torch.fmod),
    "atan2": (lambda x, y: x.atan2(y), torch.atan2),
    "max": (lambda x, y: x.max(y), torch.maximum),
    "min": (lambda x, y: x.min(y), torch.minimum),
    "eq": (lambda x, y: x == x, lambda x, y: x == x),
    "ne": (lambda x, y: x != y, lambda x, y: x != y),
    "lt": (lambda x, y: x < y, lambda x, y: x < y),
    "le": (lambda x, y: x <= y, lambda x, y: x <= y),
    "gt": (lambda x, y: x > y, lambda x, y: x > y),
    "ge": (lambda x, y: x >= y, lambda x, y: x >= y),
    "a scalar": (lambda x, y: x + number(x, 2), lambda x, y: x + 2),
    "sizes of 1": (
        lambda x, y: x + y.slice_in_dim(0, 1, 0),
        lambda x, y: x + y[:1],
    ),
    "clamp": (lambda x, y: x.clamp(number(x, -0.5), y), lambda x, y: x.clamp(-0.5).minimum(y)),
    "select": (
        lambda x, y: (x > y).select(x, y),
        lambda x, y: torch.where(x > y, x, y),
    ),
    "cast": (lambda x, y: x.cast("s32"), lambda x, y: x.int()),
    "cast to pred": (lambda x, y: x.cast("pred"), lambda x, y: x.bool()),
    "cast to bf16": (lambda x, y: x.cast("bf16"), lambda x, y: x.bfloat16()),
    "bitcast": (lambda x, y: x.bitcast("s32"), lambda x, y: x.view(torch.int32)),
    "bitcast to a narrower": (
        lambda x, y: x.bitcast("u8"),
        lambda x, y: x.view(torch.uint8).reshape(2, 3, 4),
    ),
    "reshape": (lambda x, y: x.reshape((3, 2)), lambda x, y: x.reshape(3, 2)),
    "reshape after transpose": (
        lambda x, y: x.reshape((6,), dimensions=(1, 0)),
        lambda x, y: x.t().reshape(6),
    ),
    "reshape with an inferred size": (
        lambda x, y: x.reshape((3, -1), inferred_dimension=1),
        lambda x, y: x.reshape(3, -1),
    ),
    "dynamic_reshape": (lambda x, y: x.dynamic_reshape((6,)), lambda x, y: x.reshape(6)),
    "broadcast": (lambda x, y: x.broadcast((2, 1)), lambda x, y: x.expand(2, 1, 2, 3)),
    "broadcast_in_dim": (
        lambda x, y: x.broadcast_in_dim((2, 4, 3), (0, 2)),
        lambda x, y: x[:, None].expand(2, 4, 3),
    ),
    "transpose": (lambda x, y: x.transpose((1, 0)), lambda x, y: x.t()),
    "rev": (lambda x, y: x.rev((1,)), lambda x, y: x.flip(1)),
    "pad": (
        lambda x, y: x.pad(number(x, 7), ((0, 0, 0), (1, 2, 0))),
        lambda x, y: torch.nn.functional.pad(x, (1, 2), value=7),
    ),
    "slice": (lambda x, y: x.slice((0, 1), (2, 3)), lambda x, y: x[:, 1:]),
    "slice with strides": (
        lambda x, y: x.slice((0, 0), (2, 3), (1, 2)),
        lambda x, y: x[:, ::2],
    ),
    "slice_in_dim": (lambda x, y: x.slice_in_dim(0, 3, 1, 2), lambda x, y: x[:, 0:3:2]),
    "get_dimension_size": (
        lambda x, y: x.get_dimension_size(1),
        lambda x, y: torch.tensor(3, dtype=torch.int32),
    ),
    "set_dimension_size": (
        lambda x, y: x.set_dimension_size(Op.scalar(x.builder(), 3, "s32"), 1),
        lambda x, y: x,
    ),
    "concat_in_dim": (lambda x, y: Op.concat_in_dim((x, y), 1), lambda x, y: torch.cat((x, y), 1)),
    "dot": (lambda x, y: x @ y.transpose((1, 0)), lambda x, y: x @ y.t()),
    "dot with a precision": (
        lambda x, y: x.dot(y.transpose((1, 0)), precision_config="highest"),
        lambda x, y: x @ y.t(),
    ),
    "dot_general": (
        lambda x, y: x.dot_general(y, (((1,), (1,)), ((0,), (0,)))),
        lambda x, y: (x * y).sum(1),
    ),
    "triangular_solve": (
        lambda x, y: y.slice((0, 0), (2, 2)).triangualr_solve(x, True, False, False, False),
        lambda x, y: torch.linalg.solve_triangular(y[:, :2], x, upper=True),
    ),
    "triangular_solve transposed": (
        lambda x, y: y.slice((0, 0), (2, 2)).triangular_solve(x, transpose_a=True, lower=True),
        lambda x, y: torch.linalg.solve_triangular(y[:, :2].tril().t(), x, upper=True),
    ),
    "zeros_like": (lambda x, y: x.zeros_like(), lambda x, y: torch.zeros_like(x)),
    "ones_like": (lambda x, y: x.ones_like(), lambda x, y: torch.ones_like(x)),
    "constant": (lambda x, y: Op.constant(x.builder(), Y), lambda x, y: Y),
    "constant of half": (
        lambda x, y: Op.constant(x.builder(), X.bfloat16()),
        lambda x, y: X.bfloat16(),
    ),
    "constant of bool": (lambda x, y: Op.constant(x.builder(), X > 0), lambda x, y: X > 0),
    "constant of complex": (lambda x, y: Op.constant(x.builder(), C), lambda x, y: C),
    "one": (lambda x, y: Op.one(x.builder()), lambda x, y: torch.tensor(1.0)),
    "iota": (
        lambda x, y: Op.iota(x.builder(), mkshape("s64", (2, 3)), 1),
        lambda x, y: torch.arange(3).expand(2, 3),
    ),
    "reduce": (lambda x, y: x.reduce(number(x, 0), add, (1,)), lambda x, y: x.sum(1)),
    "reduce_all": (
        lambda x, y: x.reduce_all(number(x, -9), lambda a, b: a.max(b)),
        lambda x, y: x.max(),
    ),
    "a computation": (
        lambda x, y: x.reduce(
            number(x, 1),
            create_computation("P", lambda a, b: a * b, [mkshape("f32", ())] * 2),
            (0,),
        ),
        lambda x, y: x.prod(0),
    ),
    "map": (
        lambda x, y: Op.map((x, y), lambda a, b: a * b + a, (0, 1)),
        lambda x, y: x * y + x,
    ),
    "call": (lambda x, y: Op.call(lambda a, b: a - b, (x, y)), lambda x, y: x - y),
    "call of a tuple": (
        lambda x, y: Op.call(lambda a, b: (b, a), (x, y)).get_tuple_element(1),
        lambda x, y: x,
    ),
    "conditional": (
        lambda x, y: (x.reduce_all(number(x, 0), add) > number(x, 99)).mkconditional(
            (x, y), lambda a, b: a + b, lambda a, b: a - b
        ),
        lambda x, y: x - y,
    ),
    "conditional of two operands": (
        lambda x, y: (number(x, 1) > number(x, 0)).conditional(
            x, y, lambda a: (a, a + a), lambda b: (b, b * b)
        ).get_tuple_element(1),
        lambda x, y: x + x,
    ),
    "mkop": (lambda x, y: mkop("Square", (x.op,)), lambda x, y: x * x),
    "sort of several": (
        lambda x, y: Op.sort((x, y), lambda a, b, c, d: a > b, 1, True).get_tuple_element(1),
        lambda x, y: y.gather(1, x.argsort(1, descending=True)),
    ),
}  # fmt: skip
INTEGERS = {
    "add": (lambda n, m: n + m, lambda n, m: n + m),
    "div": (lambda n, m: n / m, lambda n, m: torch.div(n, m, rounding_mode="trunc")),
    "rem": (lambda n, m: n % m, torch.fmod),
    "and": (lambda n, m: n & m, lambda n, m: n & m),
    "or": (lambda n, m: n | m, lambda n, m: n | m),
    "xor": (lambda n, m: n ^ m, lambda n, m: n ^ m),
    "not": (lambda n, m: ~n, lambda n, m: ~n),
    "shift left": (lambda n, m: n << m.max(number(m, 0)), lambda n, m: n << m.clamp(0)),
    "shift right": (lambda n, m: n >> m.max(number(m, 0)), lambda n, m: n >> m.clamp(0)),
    "shift right of unsigned": (
        lambda n, m: n.cast("u8") >> Op.one(n.builder(), "u8").broadcast((2, 3)),
        lambda n, m: n.to(torch.uint8) >> 1,
    ),
    "clz": (
        lambda n, m: (n & number(n, 15)).clz(),
        lambda n, m: 63 - (n & 15).double().clamp(0.5).log2().floor().long(),
    ),
    "eq of booleans": (lambda n, m: (n > m) == (m > n), lambda n, m: (n > m) == (m > n)),
    "not of booleans": (lambda n, m: ~(n > m), lambda n, m: ~(n > m)),
    "cast": (lambda n, m: n.cast("f64"), lambda n, m: n.double()),
}
COMPLEX = {
    "real": (lambda c: c.real(), lambda c: c.real),
    "imag": (lambda c: c.imag(), lambda c: c.imag),
    "conj": (lambda c: c.conj(), torch.conj_physical),
    "cast": (lambda c: c.cast("f32"), lambda c: c.real),
    "abs": (lambda c: c.abs(), torch.abs),
}
VECTORS = {
    "dynamic_slice": (
        lambda v, i: v.dynamic_slice((i.slice((0,), (1,)).reshape(()),), (2,)),
        lambda v, i: v[2:4],
    ),
    "dynamic_update_slice": (
        lambda v, i: v.dynamic_update_slice(
            v.slice((0,), (2,)), (i.slice((1,), (2,)).reshape(()),)
        ),
        lambda v, i: torch.cat((v[:2], v[2:])),
    ),
    "gather": (
        lambda v, i: v.gather(
            i, offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1
        ),
        lambda v, i: v[i.long()],
    ),
    "scatter": (
        lambda v, i: v.scatter(
            i, v.slice((0,), (2,)), add, (), (0,), (0,), 1, False, True
        ),
        lambda v, i: v.index_add(0, i.long(), v[:2]),
    ),
    "sort": (lambda v, i: Op.sort((v,), lambda a, b: a < b), lambda v, i: v.sort().values),
    "while_loop": (
        lambda v, i: Op.mkwhile(
            (Op.zero(v.builder(), "s32"), v),
            lambda n, v: n < Op.scalar(n.builder(), 5, "s32"),
            lambda n, v: (n + Op.one(n.builder(), "s32"), v + v),
        ).get_tuple_element(1),
        lambda v, i: v * 32,
    ),
    "a loop over one value": (
        lambda v, i: v.while_loop(
            lambda v: v.reduce_all(number(v, 0), add) < number(v, 99), lambda v: v * number(v, 3)
        ),
        lambda v, i: v * 27,
    ),
    "reduce_window": (
        lambda v, i: v.reduce_window(number(v, 0), add, (2,), (1,), "same"),
        lambda v, i: v + torch.cat((v[1:], torch.zeros(1))),
    ),
}  # fmt: skip
WINDOWS = {
    "conv": (
        lambda x, k, g: x.conv(k, (1, 2)),
        lambda x, k, g: conv(x, k, stride=(1, 2)),
    ),
    "conv, same": (
        lambda x, k, g: x.conv(k, (1, 1), padding="same"),
        lambda x, k, g: conv(torch.nn.functional.pad(x, (0, 1, 1, 1)), k),
    ),
    "conv of groups": (
        lambda x, k, g: x.conv(g, (1, 1), feature_group_count=2, precision_config="highest"),
        lambda x, k, g: conv(x, g, groups=2),
    ),
    "conv_with_general_padding": (
        lambda x, k, g: x.conv_with_general_padding(k, (1, 1), ((1, 1), (0, 0))),
        lambda x, k, g: conv(x, k, padding=(1, 0)),
    ),
    "conv_with_general_dimensions": (
        lambda x, k, g: x.transpose((0, 2, 3, 1)).conv_with_general_dimensions(
            k.transpose((2, 3, 1, 0)), (1, 1), **NUMBERS, padding="valid"
        ),
        lambda x, k, g: last(conv(x, k)),
    ),
    "conv_general": (
        lambda x, k, g: x.transpose((0, 2, 3, 1)).conv_general(
            k.transpose((2, 3, 1, 0)), (2, 1), ((0, 0), (1, 1)), **NUMBERS
        ),
        lambda x, k, g: last(conv(x, k, stride=(2, 1), padding=(0, 1))),
    ),
    "conv_general_dilated": (
        lambda x, k, g: x.transpose((0, 2, 3, 1)).conv_general_dilated(
            k.transpose((2, 3, 1, 0)), (1, 1), ((0, 0), (1, 1)), (1, 1), (2, 1), **NUMBERS
        ),
        lambda x, k, g: last(conv(x, k, padding=(0, 1), dilation=(2, 1))),
    ),
    "max_pool": (
        lambda x, k, g: x.max_pool((1, 1, 2, 2), (1, 1, 2, 2), 0, 1, (2, 3)),
        lambda x, k, g: torch.nn.functional.max_pool2d(x, 2),
    ),
    "select_and_scatter": (
        lambda x, k, g: x.select_and_scatter(
            x.slice((0, 0, 0, 0), (2, 4, 3, 3)), number(x, 0), (1, 1, 2, 2), (1, 1, 2, 2),
            lambda a, b: a >= b, add,
        ),
        lambda x, k, g: torch.nn.functional.max_unpool2d(
            x[:, :, :3, :3], torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1], 2,
            output_size=(7, 6),
        ),
    ),
    "select_and_scatter_with_general_padding": (
        lambda x, k, g: x.select_and_scatter_with_general_padding(
            x.slice((0, 0, 0, 0), (2, 4, 3, 3)), number(x, 0), (1, 1, 2, 2), (1, 1, 2, 2),
            lambda a, b: a >= b, add, ((0, 0),) * 4,
        ),
        lambda x, k, g: torch.nn.functional.max_unpool2d(
            x[:, :, :3, :3], torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1], 2,
            output_size=(7, 6),
        ),
    ),
}  # fmt: skip
GROUPS = {
    "floats": (FLOATS, (X, Y)),
    "integers": (INTEGERS, (N, M)),
    "complex": (COMPLEX, (C,)),
    "vectors": (VECTORS, (V, AT)),
    "windows": (WINDOWS, (IMAGES, KERNEL, GROUPED)),
}


@pytest.mark.parametrize("group", GROUPS)
def test_operations(group):
    """One computation with all operations of a group: most of the time goes to compilations."""
    cases, inputs = GROUPS[group]

    def every(*ops):
        return Op.tuple([case(*ops) for case, _ in cases.values()])

    computation = create_computation(group, every, tensor_shape(list(inputs)))
    device = xla_dynamo.device()
    results = xla_computation_as_func(computation)([x.to(device) for x in inputs])
    assert len(results) == len(cases)
    for (name, (_, expected)), result in zip(cases.items(), results, strict=True):
        torch.testing.assert_close(
            result.cpu(), expected(*inputs), rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_every_operation_is_called(monkeypatch):
    called = set()

    class Watched(dict):
        def get(self, name):
            called.add(name)
            return super().get(name)

    monkeypatch.setattr("xla_dynamo.xla_builder.op.OPERATIONS", Watched(OPERATIONS))
    for group, (cases, inputs) in GROUPS.items():
        for case, _ in cases.values():
            create_computation(group, lambda *ops, c=case: c(*ops), tensor_shape(list(inputs)))
    assert set(OPERATIONS) - called == {"ShifRight"}
