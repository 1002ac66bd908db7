"""torchao's quantized weights: one graph, torchao's numbers, and the kernels that read them."""

import copy

import pytest
import torch
from torch import nn

from tests.compiling import watched
from tests.packing import needs_onednn, packed_calls
from tests.test_narrow_products import called
from xla_dynamo.kernels import int4_products, integer_products, narrow_products

pytest.importorskip("torchao")

from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)

pytestmark = needs_onednn
# By torchao's configuration: the kernel of few rows, and the group that the inner size is whole of.
CONFIGURATIONS = {
    "int8": (Int8WeightOnlyConfig, "planned_narrow_product", 1),
    "int8-dynamic": (Int8DynamicActivationInt8WeightConfig, "planned_integer_product", 1),
    "int4": (
        lambda: PrototypeInt4WeightOnlyConfig(group_size=32, set_inductor_config=False),
        "planned_int4_product",
        32,
    ),
    "float8": (Float8WeightOnlyConfig, None, 1),
    "int4 in int8": (
        lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        None,
        32,
    ),
}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def always(cold, monkeypatch, others_may_warn):
    """However little there is to multiply."""
    monkeypatch.setattr(narrow_products, "FEWEST_IN_WEIGHT", 0)
    monkeypatch.setattr(integer_products, "FEWEST_IN_PRODUCT", 0)


def needs_vectors(name):
    """Skip what needs AVX-512."""
    if name == "int4" and torch.backends.cpu.get_cpu_capability() != int4_products.CAPABILITY:
        pytest.skip("the functions are for AVX-512")


def quantized(model, name):
    quantize_(model, CONFIGURATIONS[name][0]())
    return model


def exact(linear, x):
    """The product with the dequantized weight in float64."""
    weight = linear.weight
    try:
        wide = weight.dequantize().double()
    except NotImplementedError:  # the packed one multiplies a unit matrix
        unit = torch.eye(weight.shape[1], dtype=x.dtype)
        wide = nn.functional.linear(unit, weight).double().t()
    bias = 0 if linear.bias is None else linear.bias.double()
    return x.double() @ wide.t() + bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("rows", [1, 5, 140])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_linear(name, rows, bias, dtype):
    """As far from the dequantized product as torchao in eager, or roundings of float32 more."""
    _, kernel, group = CONFIGURATIONS[name]
    needs_vectors(name)
    inner, columns = (96, 80) if group > 1 else (97, 67)
    model = quantized(nn.Linear(inner, columns, bias=bias, dtype=dtype), name)
    x = torch.randn(rows, inner, dtype=dtype)
    result, calls = called(model, x, fallback="error")
    with torch.no_grad():
        expected, wide = model(x), exact(model, x)
    assert result.dtype is expected.dtype
    scale = wide.abs().max()
    ours, eagers = ((one.double() - wide).abs().max() / scale for one in (result, expected))
    assert ours <= 1.5 * eagers + 4 * torch.finfo(torch.float32).eps
    if kernel and (rows < 16 or name == "int8-dynamic"):
        assert calls == [kernel]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_rows(name):
    model = quantized(nn.Linear(64, 48), name)
    x = torch.randn(0, 64)
    try:
        expected = model(x)
    except (RuntimeError, TypeError):
        pytest.skip("torchao does not take them")
    result, _ = called(model, x, fallback="error")
    assert result.shape == expected.shape == (0, 48)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_rows_that_change(name):
    """A dynamic number of rows: one program serves several."""
    model = quantized(nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)), name)
    run, built = watched(model, dynamic=True, fallback="error")
    with torch.no_grad():
        for rows in (3, 2, 9, 33, 140):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    calls = [[call.form.name for call in packed_calls(event.program)] for event in built]
    if name == "int8":  # the last bound is above the rows up to which it pays
        assert calls[:-1] == [["planned_narrow_product"] * 2] * (len(calls) - 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["int8", "int8-dynamic", "int4"])
def test_llama(name, dtype):
    """Each of the seven products of a layer, and the last one, are calls of the kernel."""
    transformers = pytest.importorskip("transformers")
    needs_vectors(name)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    tokens = torch.randint(0, 256, (1, 6))
    with torch.no_grad():
        wide = copy.deepcopy(model)(tokens).logits
        expected = quantized(model, name)(tokens).logits
    result, calls = called(lambda tokens: model(tokens).logits, tokens, fallback="error")
    assert calls.count(CONFIGURATIONS[name][1]) == 2 * 7 + 1
    # A sum that is rounded otherwise may bring an activation to the next of the integers.
    close = 1e-4 if dtype is torch.float32 and name != "int8-dynamic" else 3e-2
    torch.testing.assert_close(result, expected, rtol=close, atol=close)
    assert not torch.equal(expected, wide)
