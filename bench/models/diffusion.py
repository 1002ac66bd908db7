"""The networks of diffusion models, from their configurations in `diffusers`.

Each forward is one step of denoising, or one pass of an autoencoder.
"""

import functools
from typing import Any

import torch

from bench.models.inputs import floats, images, integers, sized, together
from bench.models.registry import register

_register = functools.partial(register, family="diffusion")

_TINY_CROSS: dict[str, Any] = {
    "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 8,
    "norm_num_groups": 8,
}  # fmt: skip
_CONDITIONED = together(
    floats("encoder_hidden_states", (7, 768), (7, 32)), timestep=torch.tensor(10), return_dict=False
)
_CODER_TINY: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (8, 16), "norm_num_groups": 4,
}  # fmt: skip

_register(  # Stable Diffusion 1: over a second even alone, as its name promises
    "diffusion_unet", "diffusers.UNet2DConditionModel",
    {"sample_size": 64, "cross_attention_dim": 768},
    {**_TINY_CROSS, "sample_size": 16, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
    together(floats("sample", (4, 64, 64), (4, 16, 16)), _CONDITIONED), batch=1,
)  # fmt: skip
_register(  # DDPM's for CIFAR-10
    "ddpm_unet", "diffusers.UNet2DModel",
    {
        "sample_size": 32, "block_out_channels": (128, 256, 256, 256), "layers_per_block": 2,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": None, "downsample_padding": 0, "dropout": 0.1,
    },
    {
        "sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "norm_num_groups": 8,
        "attention_head_dim": None, "downsample_padding": 0, "dropout": 0.1,
    },
    together(images(32, 16, "sample"), timestep=torch.tensor(10), return_dict=False),
)  # fmt: skip
_register(  # the half of Stable Diffusion 1's that its ControlNet copies, on about half of the area
    "controlnet", "diffusers.ControlNetModel", {"cross_attention_dim": 768},
    {**_TINY_CROSS, "conditioning_embedding_out_channels": (8, 16)},
    together(
        floats("sample", (4, 48, 48), (4, 16, 16)),
        floats("controlnet_cond", (3, 384, 384), (3, 32, 32)),
        _CONDITIONED,
    ),
    batch=1,
)  # fmt: skip
_register(  # Stable Diffusion 1's, on images of a quarter of the side
    "autoencoder_kl", "diffusers.AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
    },
    _CODER_TINY, together(images(128, 16, "sample"), return_dict=False), batch=1,
)  # fmt: skip
_register(  # VQGAN's: the nearest of a codebook's vectors stands for each
    "vq_model", "diffusers.VQModel",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "block_out_channels": (128, 256, 512), "layers_per_block": 2, "num_vq_embeddings": 8192,
    },
    {**_CODER_TINY, "num_vq_embeddings": 32},
    together(images(64, 16, "sample"), return_dict=False), batch=1,
)  # fmt: skip


def _classes(batch: int, side: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(batch, 4, side, side),
        "timestep": torch.randint(0, 1000, (batch,)),
        "class_labels": torch.randint(0, 9, (batch,)),
        "return_dict": False,
    }


_register(  # DiT B/2
    "dit", "diffusers.DiTTransformer2DModel",
    {"num_attention_heads": 12, "attention_head_dim": 64, "num_layers": 12, "out_channels": 8},
    {
        "num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2, "out_channels": 8,
        "sample_size": 8, "num_embeds_ada_norm": 10,
    },
    sized(32, 8, _classes), batch=2,
)  # fmt: skip
_register(  # PixArt with 8 of its 28 layers
    "pixart", "diffusers.PixArtTransformer2DModel",
    {"num_layers": 8, "sample_size": 32, "caption_channels": 4096},
    {
        "num_layers": 2, "sample_size": 8, "caption_channels": 16, "num_attention_heads": 4,
        "attention_head_dim": 8, "cross_attention_dim": 32,
    },
    together(
        floats("hidden_states", (4, 32, 32), (4, 8, 8)),
        floats("encoder_hidden_states", (77, 4096), (7, 16)),
        integers("timestep", (), (), 1000),
        added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False,
    ),
    batch=1,
)  # fmt: skip
_TEXT_AND_TIME = together(
    floats("encoder_hidden_states", (77, 4096), (7, 16)),
    floats("pooled_projections", (2048,), (24,)),
    floats("timestep", (), ()),
    return_dict=False,
)
_register(  # 6 of the 24 layers of Stable Diffusion 3 medium, on a quarter of the side
    "stable_diffusion_3", "diffusers.SD3Transformer2DModel",
    {"num_layers": 6, "num_attention_heads": 24, "caption_projection_dim": 1536},
    {
        "num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 8, "in_channels": 4,
        "out_channels": 4, "caption_projection_dim": 32, "joint_attention_dim": 16,
        "pooled_projection_dim": 24, "sample_size": 8, "pos_embed_max_size": 8,
    },
    together(_TEXT_AND_TIME, floats("hidden_states", (16, 32, 32), (4, 8, 8))), batch=1,
)  # fmt: skip


def _positions(_: int, sizes: tuple[int, int]) -> dict[str, torch.Tensor]:
    side, words = sizes
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1)
    return {"img_ids": places.float(), "txt_ids": torch.zeros(words, 3)}


_register(  # Flux at a third of its width, 2 of its 19 double layers and 4 of its 38 single ones
    "flux", "diffusers.FluxTransformer2DModel",
    {"num_layers": 2, "num_single_layers": 4, "num_attention_heads": 8,
     "pooled_projection_dim": 2048},
    {
        "num_layers": 1, "num_single_layers": 2, "num_attention_heads": 2,
        "attention_head_dim": 16, "axes_dims_rope": (4, 6, 6), "in_channels": 4,
        "joint_attention_dim": 16, "pooled_projection_dim": 24,
    },
    together(
        _TEXT_AND_TIME,
        floats("hidden_states", (256, 64), (16, 4)),
        sized((16, 77), (4, 7), _positions),
    ),
    batch=1,
)  # fmt: skip
