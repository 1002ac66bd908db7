"""Images by denoising, as in PyTorch/XLA's recipe for Stable Diffusion, of small random weights.

    python -m docs.examples.migration.stable_diffusion --steps 4

There the pipeline moves to the device and each step of the denoiser is marked. Here the modules of
the pipeline are compiled where they are. With a checkpoint: `pipe = StableDiffusionPipeline.
from_pretrained(...)`, then `pipe.unet = torch.compile(pipe.unet, backend="openxla")`, likewise
`pipe.vae.decode`, and the pipeline is called as before.
"""

import argparse
import time
from collections.abc import Sequence

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel

_WIDTH_OF_TEXT = 32


def models() -> tuple[torch.nn.Module, torch.nn.Module]:
    """The denoiser of latents f32[batch, 4, 16, 16] under a text, and the autoencoder."""
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=_WIDTH_OF_TEXT,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )
    return unet.eval(), vae.eval()


@torch.no_grad()
def denoised(unet: object, decode: object, text: torch.Tensor, steps: int) -> torch.Tensor:
    """An image f32[1, 3, 32, 32] for the embedding of a text f32[1, tokens, width].

    Args:
        unet: the denoiser, or what torch.compile made of it.
        decode: the decoder of latents, likewise.
        text: the embedding; without one, the guidance compares with zeros.
        steps: of the denoiser.
    """
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(steps)
    latents = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    both = torch.cat([torch.zeros_like(text), text])
    for t in scheduler.timesteps:
        without, guided = unet(torch.cat([latents, latents]), t, both).sample.chunk(2)  # type: ignore[operator]
        latents = scheduler.step(without + 7.5 * (guided - without), t, latents).prev_sample
    return decode(latents / 0.18215).sample  # type: ignore[operator]


def main(arguments: Sequence[str] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Make an image twice; what eager and what the compiled modules made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args(arguments)
    torch.manual_seed(42)
    unet, vae = models()
    text = torch.randn(1, 7, _WIDTH_OF_TEXT)
    eager = denoised(unet, vae.decode, text, options.steps)
    fast = torch.compile(unet, backend="openxla"), torch.compile(vae.decode, backend="openxla")
    for name in ("first", "second"):
        start = time.perf_counter()
        image = denoised(*fast, text, options.steps)
        print(f"the {name} image took {time.perf_counter() - start:.2f} s")
    print(f"off from eager's by {(image - eager).abs().max():.1e}")
    return eager, image


if __name__ == "__main__":
    main()
