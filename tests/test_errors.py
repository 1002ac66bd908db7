"""Wrong input raises the designed error, which names the user's line."""

from types import MappingProxyType

import pytest
import torch

import xla_dynamo
from xla_dynamo import errors
from xla_dynamo.graphs.signatures import signature


@torch.library.custom_op("xla_dynamo_tests::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@mystery.register_fake
def _(x):
    return torch.empty_like(x)


def compile_error(f, *args, options=MappingProxyType({"fallback": "error"}), **kwargs):
    """The exception behind Dynamo's wrapper when f is compiled for these arguments."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(f, backend="openxla", fullgraph=True, options=options, **kwargs)(*args)
    return caught.value.inner_exception


def test_operator_without_a_rule():
    def f(x):
        return torch.ops.xla_dynamo_tests.mystery(x * 2)  # the line to name

    error = compile_error(f, torch.randn(8, 3))
    assert isinstance(error, errors.UnsupportedOperator)
    assert "no lowering for xla_dynamo_tests.mystery.default(f32[8,3])" in str(error)
    assert "test_errors.py" in str(error)
    assert "# the line to name" in str(error)
    assert "adding-a-lowering" in str(error)


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        (torch.bfloat16, "bf16[8,3]"),
        (torch.int64, "i64[8,3]"),
        (torch.uint8, "u8[8,3]"),
        (torch.complex64, "c64[8,3]"),
        (torch.bool, "bool[8,3]"),
        (torch.float8_e4m3fn, "f8e4m3fn[8,3]"),
        (torch.int4, "int4[8,3]"),  # torch has no short name for it
    ],
)
def test_types_in_messages(dtype, shown):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops.aten.neg.default, (x,))
    values = {x: torch.empty(8, 3, dtype=dtype, device="meta")}
    assert signature(node, values) == f"aten.neg.default({shown})"


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_unsupported_dtype():
    x = torch.zeros(4, dtype=torch.complex32)
    error = compile_error(lambda x: torch.view_as_real(x), x)
    assert isinstance(error, errors.UnsupportedDtype)
    assert "complex32" in str(error)
    assert "test_errors.py" in str(error)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_unsupported_dtype_inside_the_graph():
    error = compile_error(lambda x: x.to(torch.complex32), torch.randn(4))
    assert isinstance(error, errors.UnsupportedDtype)
    assert "test_errors.py" in str(error)


def test_sparse_tensor():
    """Dynamo refuses sparse inputs itself; whoever hands a graph to the backend meets our check."""
    x = torch.eye(3).to_sparse()
    gm = torch.fx.symbolic_trace(lambda x: x * 2)
    with pytest.raises(errors.UnsupportedTensor, match="to_dense"):
        xla_dynamo.openxla(gm, [x])
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?s)sparse.*test_errors.py"):
        torch.compile(lambda x: x * 2, backend="openxla", fullgraph=True)(x)


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_quantized_tensor():
    """As with sparse tensors, Dynamo refuses first, and names the line."""
    x = torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.quint8)
    gm = torch.fx.symbolic_trace(lambda x: x * 2)
    with pytest.raises(errors.UnsupportedTensor, match="dequantize"):
        xla_dynamo.openxla(gm, [x])
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?s)quantized.*test_errors.py"):
        torch.compile(lambda x: x.dequantize(), backend="openxla", fullgraph=True)(x)


def test_mixed_devices():
    x, y = torch.randn(3), torch.empty(3, device="meta")

    def f(x, y):
        return x + 1, y.view(3, 1)

    error = compile_error(f, x, y)
    assert isinstance(error, errors.UnsupportedTensor)
    assert "several devices" in str(error)
    assert "test_errors.py" in str(error)


def test_device_without_a_plugin():
    error = compile_error(lambda x: x + 1, torch.empty(3, device="meta"))
    assert isinstance(error, errors.UnsupportedTensor)
    assert "meta" in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constant_limits": 3}, "did you mean 'constant_limit'"),
        ({"nonsense": 3}, "valid options are"),
        ({"constant_limit": "3"}, "must be an integer"),
        ({"max_executables": 0}, "must not be 0"),
        ({"xla_options": 3}, "must be a dict"),
        ({"fallback": "none"}, "must be one of ('eager', 'error')"),
        ({"matmul_precision": "low"}, "must be one of ('highest', 'high', 'medium')"),
        ({"matmul_precision": ["high"]}, "must be one of ('highest', 'high', 'medium')"),
        ("constant_limit", "options must be a dict"),
        ({"xla_options": {1: 2}}, "names of XLA's options"),
    ],
)
def test_options(options, message):
    error = compile_error(lambda x: x + 1, torch.randn(3), options=options)
    assert isinstance(error, errors.OptionError)
    assert message in str(error)


def test_xla_option_that_xla_does_not_know():
    options = {"xla_options": {"xla_no_such_option": True}}
    error = compile_error(lambda x: x + 1, torch.randn(3), options=options)
    assert isinstance(error, errors.CompileError)
    assert "xla_no_such_option" in str(error)


def test_xla_options_of_every_type():
    options = {"xla_cpu_enable_fast_math": True, "xla_cpu_prefer_vector_width": 256}
    options["xla_cpu_max_isa"] = "AVX2"
    f = torch.compile(lambda x: x + 1, backend="openxla", options={"xla_options": options})
    assert f(torch.zeros(1)).item() == 1


def test_out_of_memory():
    def f(x):
        small = x + 1
        return small.expand(1 << 42, 8) * 2  # the line to name

    g = torch.compile(f, backend="openxla", fullgraph=True)
    with pytest.raises(errors.ExecutionError, match="# the line to name"):
        g(torch.randn(8))
    # The process and the device live on.
    assert torch.compile(lambda x: x + 1, backend="openxla")(torch.zeros(1)).item() == 1


def test_rule_that_fails():
    op = torch.ops.xla_dynamo_tests.mystery.default

    @xla_dynamo.lowers(op)
    def broken(ctx, x):
        raise KeyError("oops")

    try:
        error = compile_error(lambda x: op(x), torch.randn(3))
    finally:
        del xla_dynamo.lowerings.TABLE[str(op)]
    assert isinstance(error, errors.LoweringError)
    assert "oops" in str(error)
    assert "test_errors.py" in str(error)


def test_rule_that_emits_another_type():
    from xla_dynamo.lowerings.builders import build

    op = torch.ops.xla_dynamo_tests.mystery.default

    @xla_dynamo.lowers(op)
    def wrong(ctx, x):
        return build.cast(x, torch.float64)

    try:
        error = compile_error(lambda x: op(x), torch.randn(3))
    finally:
        del xla_dynamo.lowerings.TABLE[str(op)]
    assert isinstance(error, errors.LoweringError)
    assert "tensor<3xf64>" in str(error)
    assert "fault of the rule (tests.test_errors)" in str(error)


def test_registering_what_a_library_registered_by_name():
    xla_dynamo.lowers("xla_dynamo_tests.mystery.default")(lambda ctx, x: x)
    try:
        with pytest.raises(ValueError, match=r"in tests\.test_errors"):
            xla_dynamo.lowers(torch.ops.xla_dynamo_tests.mystery.default)
    finally:
        del xla_dynamo.lowerings.TABLE["xla_dynamo_tests.mystery.default"]


def test_registering_twice_or_a_packet():
    with pytest.raises(ValueError, match="has a rule already"):
        xla_dynamo.lowers(torch.ops.aten.permute.default)(None)
    with pytest.raises(TypeError, match="overloads"):
        xla_dynamo.lowers(torch.ops.aten.permute)


def test_every_error_is_in_the_tree():
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    assert all(issubclass(c, errors.XlaDynamoError) for c in classes)
