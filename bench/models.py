"""Real models with random weights, by name: what the demo, the benchmarks and the tests run.

Nothing is downloaded: models are made from the configurations of `transformers` and `diffusers`.
"full" is the size that its name promises; "tiny" keeps every kind of layer and is for tests.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Model:
    """How to make a model and its inputs.

    Attributes:
        make: size ("tiny" or "full") to a module in eval mode.
        inputs: (size, batch) to keyword arguments of its forward.
    """

    make: Callable[[str], torch.nn.Module]
    inputs: Callable[[str, int], dict[str, Any]]


MODELS: dict[str, Model] = {}


def build(name: str, size: str, *, seed: int = 0) -> torch.nn.Module:
    """Make a model in eval mode with seeded weights, none of which is a telltale constant."""
    torch.manual_seed(seed)
    model = MODELS[name].make(size).eval()
    randomize_constants(model, seed)
    return model


def randomize_constants(model: torch.nn.Module, seed: int) -> None:
    """Give parameters and statistics that are all one value (0, 1, 1e-6) seeded random ones.

    A new model's zero heads, layer scales of 1e-6, and statistics of 0 and 1 hide wrong lowerings.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point() or tensor.numel() < 2:
                continue
            if bool((tensor == tensor.flatten()[0]).all()):
                noise = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
                positive = "var" in name or tensor.flatten()[0] > 0
                tensor.copy_(noise * 0.5 + 0.75 if positive else noise * 0.2 - 0.1)


def _register(name: str, config: str, cls: str, full: dict, tiny: dict, inputs: Any) -> None:
    """One model of transformers: its configuration class, model class, and two sets of sizes."""

    def make(size: str) -> torch.nn.Module:
        import transformers

        settings = tiny if size == "tiny" else full
        return getattr(transformers, cls)(getattr(transformers, config)(**settings))

    MODELS[name] = Model(make, inputs)


def _images(full: int, tiny: int) -> Callable[[str, int], dict[str, Any]]:
    def inputs(size: str, batch: int) -> dict[str, Any]:
        side = tiny if size == "tiny" else full
        return {"pixel_values": torch.randn(batch, 3, side, side)}

    return inputs


def _tokens(full: int = 128, tiny: int = 12, vocabulary: int = 99, **extra: Any) -> Any:
    def inputs(size: str, batch: int) -> dict[str, Any]:
        length = tiny if size == "tiny" else full
        ids = torch.randint(0, vocabulary, (batch, length))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **extra}

    return inputs


def _encoder_decoder(size: str, batch: int) -> dict[str, Any]:
    ids = _tokens()(size, batch)
    return {**ids, "decoder_input_ids": ids["input_ids"][:, :8].contiguous(), "use_cache": False}


def _speech(size: str, batch: int) -> dict[str, Any]:
    frames, mels = (64, 16) if size == "tiny" else (3000, 80)
    return {
        "input_features": torch.randn(batch, mels, frames),
        "decoder_input_ids": torch.randint(0, 99, (batch, 8)),
        "use_cache": False,
    }


def _image_and_text(size: str, batch: int) -> dict[str, Any]:
    return {**_images(224, 32)(size, batch), **_tokens(77, 12)(size, batch)}


def _diffusion(size: str, batch: int) -> dict[str, Any]:
    side, width = (16, 32) if size == "tiny" else (64, 768)
    return {
        "sample": torch.randn(batch, 4, side, side),
        "timestep": torch.tensor(10),
        "encoder_hidden_states": torch.randn(batch, 7, width),
        "return_dict": False,
    }


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {**_SMALL, "vocab_size": 99, "intermediate_size": 37, "max_position_embeddings": 64}
_VISION = {**_SMALL, "intermediate_size": 37, "image_size": 30, "patch_size": 5}
_GATED = {**_TEXT, "num_key_value_heads": 2, "use_cache": False}

_register(
    "resnet50", "ResNetConfig", "ResNetForImageClassification", {},
    {"embedding_size": 16, "hidden_sizes": [16, 32, 32, 64], "depths": [1, 2, 1, 1]},
    _images(224, 64),
)  # fmt: skip
_register(
    "mobilenet_v2", "MobileNetV2Config", "MobileNetV2ForImageClassification", {},
    {"depth_multiplier": 0.35, "image_size": 64, "tf_padding": True}, _images(224, 64),
)  # fmt: skip
_register(
    "convnext", "ConvNextConfig", "ConvNextForImageClassification", {},
    {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}, _images(224, 64),
)  # fmt: skip
_register(
    "efficientnet", "EfficientNetConfig", "EfficientNetForImageClassification",
    {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224},
    {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320, "image_size": 64},
    _images(224, 64),
)  # fmt: skip
_register("vit", "ViTConfig", "ViTForImageClassification", {}, _VISION, _images(224, 30))
_register(
    "deit", "DeiTConfig", "DeiTForImageClassificationWithTeacher", {}, _VISION, _images(224, 30)
)
_register(
    "swin", "SwinConfig", "SwinForImageClassification", {},
    {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32},
    _images(224, 32),
)  # fmt: skip
_register(
    "segformer", "SegformerConfig", "SegformerForSemanticSegmentation", {},
    {
        "hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 3], "decoder_hidden_size": 16,
    },
    _images(512, 64),
)  # fmt: skip
_register(
    "clip", "CLIPConfig", "CLIPModel", {},
    {
        "text_config": {**_TEXT, "eos_token_id": 98, "bos_token_id": 1},
        "vision_config": {**_VISION, "image_size": 32, "patch_size": 8},
        "projection_dim": 24,
    },
    _image_and_text,
)  # fmt: skip
_register("bert", "BertConfig", "BertForMaskedLM", {}, _TEXT, _tokens())
_register("roberta", "RobertaConfig", "RobertaForMaskedLM", {}, _TEXT, _tokens())
_register(
    "distilbert", "DistilBertConfig", "DistilBertForMaskedLM", {},
    {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}, _tokens(),
)  # fmt: skip
_register(
    "t5", "T5Config", "T5ForConditionalGeneration", {},
    {
        "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4,
        "use_cache": False,
    },
    _encoder_decoder,
)  # fmt: skip
_register(
    "gpt2", "GPT2Config", "GPT2LMHeadModel", {"use_cache": False},
    {
        "vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2,
        "use_cache": False,
    },
    _tokens(),
)  # fmt: skip
_register(
    "llama", "LlamaConfig", "LlamaForCausalLM",
    {
        "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32000,
        "use_cache": False,
    },
    _GATED, _tokens(),
)  # fmt: skip
_register(
    "mixtral", "MixtralConfig", "MixtralForCausalLM",
    {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32000,
        "use_cache": False,
    },
    {**_GATED, "intermediate_size": 48, "num_local_experts": 4}, _tokens(),
)  # fmt: skip
_register(
    "whisper", "WhisperConfig", "WhisperForConditionalGeneration", {"use_cache": False},
    {
        "vocab_size": 99, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "max_source_positions": 32,
        "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 3, "use_cache": False,
    },
    _speech,
)  # fmt: skip


def _unet(size: str) -> torch.nn.Module:
    import diffusers

    if size == "full":
        return diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    return diffusers.UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8,
        norm_num_groups=8,
    )  # fmt: skip


MODELS["diffusion_unet"] = Model(_unet, _diffusion)
