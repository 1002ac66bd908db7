"""Quantized formats as transformers loads them: text and logits are eager's, in whole graphs."""

import re

import pytest
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)

import bench.quantized
import xla_dynamo
from bench import gguf_file
from tests.test_generate import SIZES, gpt2, prompt

TEXT = {"max_new_tokens": 8, "pad_token_id": 0, "eos_token_id": None}


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES | {"intermediate_size": 96})  # in blocks of 32
    return transformers.LlamaForCausalLM(config).eval()


def qwen3():
    """The sizes of heads are those that transformers assumes of a GGUF file."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}
    config = transformers.Qwen3Config(
        **sizes, intermediate_size=96, num_hidden_layers=2, vocab_size=64, tie_word_embeddings=True
    )
    return transformers.Qwen3ForCausalLM(config).eval()


def check(model):
    """Compiled logits and text are eager's, with no graph break and nothing left to torch."""
    ids = prompt(2)
    assert torch.equal(xla_dynamo.generate(model, ids, **TEXT), model.generate(ids, **TEXT))
    whole = torch.compile(model, backend="openxla", fullgraph=True, options={"fallback": "error"})
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        actual = whole(ids, use_cache=False).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    return expected


@pytest.mark.every(2)
@pytest.mark.parametrize("make", [llama, gpt2, qwen3])
@pytest.mark.parametrize("kind", ["int8", "int4", "bfloat16"])
def test_gguf_files(make, kind, tmp_path):
    """They are dequantized as they are loaded: on a CPU there is no kernel for their blocks."""
    model = make()
    gguf_file.write(model, tmp_path / "model.gguf", kind)
    loaded = type(model).from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    logits = check(loaded.eval())
    assert all(p.dtype == torch.float32 for p in loaded.parameters())
    with torch.no_grad():
        exact = model(prompt(2)).logits
    error = (logits - exact).abs().max() / exact.abs().max()
    assert 0 < error < {"int8": 0.02, "int4": 0.3, "bfloat16": 0.02}[kind]


def compressed(model, folder, bits, group):
    """Write a model's linear layers as compressed-tensors packs them, with scales of its own."""
    size = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    scheme = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(num_bits=bits, type="int", **size)
    )
    config = QuantizationConfig(
        config_groups={"weights": scheme}, ignore=["lm_head"], format="pack-quantized"
    )
    apply_quantization_config(model, config)
    for layer in model.modules():
        if hasattr(layer, "weight_scale"):
            groups = layer.weight.detach().unflatten(1, (layer.weight_scale.shape[1], -1))
            layer.weight_scale.data.copy_(groups.abs().amax(-1) / (2 ** (bits - 1) - 1))
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 16)])
def test_compressed_tensors(bits, group, tmp_path):
    compressed(llama(), tmp_path, bits, group)
    settings = {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    logits = check(transformers.LlamaForCausalLM.from_pretrained(tmp_path, **settings).eval())
    with torch.no_grad():
        exact = llama()(prompt(2)).logits
    error = (logits - exact).abs().max() / exact.abs().max()
    assert 0 < error < (0.3 if bits == 4 else 0.02)


def test_compressed_tensors_as_they_are(tmp_path):
    """The library decompresses in its first forward, and each layer compares addresses then."""
    compressed(llama(), tmp_path, 4, 16)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    layer, ids = model.model.layers[0].mlp.up_proj, prompt(2)
    assert layer.weight_packed.dtype == torch.int32
    assert torch.equal(xla_dynamo.generate(model, ids, **TEXT), model.generate(ids, **TEXT))
    assert layer.weight.dtype == torch.float32
    whole = torch.compile(model, backend="openxla", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Data pointer comparison"):
        whole(ids, use_cache=False)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_torchao_packs_what_was_dequantized(name, tmp_path):
    """The programs read the narrow weights: eight bits of each, or two of four bits."""
    # In torchao's int4 a scale serves 128 weights of a row.
    gguf_file.write(bench.quantized.llama("tiny"), tmp_path / "model.gguf", "int8")
    settings = {"gguf_file": "model.gguf", "dtype": torch.float32}
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path, **settings)
    model = bench.quantized.quantized(loaded.eval(), name)
    check(model)
    with torch.no_grad():
        report = xla_dynamo.explain(model)(prompt(2), use_cache=False)
    (executable,) = report.executables
    (main,) = re.findall(r"func.func public @main\((.*?)\) ->", executable.stablehlo, re.DOTALL)
    layers = sum(isinstance(layer, torch.nn.Linear) for layer in model.modules())
    assert len(re.findall(r"tensor<\d+x\d+xu?i8>", main)) == layers


def test_other_models_and_kinds_have_no_gguf_file(tmp_path):
    with pytest.raises(ValueError, match="no GGUF file of a llama in int2: take one of llama"):
        gguf_file.write(llama(), tmp_path / "model.gguf", "int2")
