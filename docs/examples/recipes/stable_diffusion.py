"""Stable Diffusion, by diffusers' own pipeline: text encoder, U-Net and decoder are compiled.

    python -m docs.examples.recipes.stable_diffusion
    python -m docs.examples.recipes.stable_diffusion --model folder --size 512 --prompt "a red fox"

Without `--model` the networks are small and have random weights, so that the images are coloured
noise: what can be seen is that they are eager's images, and how long each way takes. `--model`
takes a folder of real weights in diffusers' format, or a name on the Hugging Face Hub.
"""

import argparse
import pathlib
from collections.abc import Sequence

import diffusers
import numpy as np
import rich.progress
import tokenizers
import torch
import transformers
from diffusers.utils import make_image_grid

from docs.examples.progress import plot
from docs.examples.recipes.common import beside_eager, multiple_of, options_of

PROMPTS = ("a lighthouse in a storm", "a bowl of lemons", "an old map", "a red fox in the snow")


def random_pipeline(width: int, size: int) -> diffusers.StableDiffusionPipeline:
    """The parts of Stable Diffusion 1, each small and with random weights.

    Args:
        width: channels of the U-Net's first level, a multiple of 8.
        size: height and width of the images, in pixels, a multiple of 16.
    """
    # All characters are tokens, at the end of a word others than inside: no file of words is read.
    characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = transformers.CLIPTokenizer(
        {word: number for number, word in enumerate(words)}, [], model_max_length=77
    )
    text_encoder = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=len(words),
            hidden_size=2 * width,
            intermediate_size=4 * width,
            num_hidden_layers=2,
            num_attention_heads=2,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    unet = diffusers.UNet2DConditionModel(
        sample_size=size // 8,
        block_out_channels=(width, 2 * width),
        layers_per_block=1,
        cross_attention_dim=2 * width,
        attention_head_dim=2,  # the number of heads, for all its name
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    levels = 4  # the decoder doubles the size at all levels but one, which makes 8
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=(width // 2, width // 2, width, width),
        norm_num_groups=4,
        latent_channels=4,
    )
    scheduler = diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1,
        clip_sample=False, set_alpha_to_one=False,
    )  # fmt: skip
    return diffusers.StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text_encoder.eval(),
        tokenizer=tokenizer,
        unet=unet.eval(),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def compile_parts(pipeline: diffusers.StableDiffusionPipeline) -> None:
    """Compile in place what takes the time; the pipeline stays the object that diffusers knows.

    The pipeline reads attributes of its parts, so each stays the module that it is.
    """
    options = {"freeze": True}  # the weights do not change: what depends on them alone is kept
    pipeline.text_encoder.compile(backend="openxla", fullgraph=True, options=options)
    pipeline.unet.compile(backend="openxla", fullgraph=True, options=options)
    pipeline.vae.decode = torch.compile(
        pipeline.vae.decode, backend="openxla", fullgraph=True, options=options
    )


def draw(
    pipeline: diffusers.StableDiffusionPipeline, options: argparse.Namespace, what: str
) -> np.ndarray:
    """The images f32[prompts, size, size, 3] from 0 to 1, each drawn from a seed of its own."""
    seeds = range(options.seed, options.seed + len(options.prompt))
    with rich.progress.Progress() as progress:
        bar = progress.add_task(what, total=options.steps)

        def step_ends(*_: object) -> dict[str, object]:
            progress.advance(bar)
            return {}  # nothing of the pipeline is changed

        return pipeline(
            options.prompt,
            height=options.size,
            width=options.size,
            num_inference_steps=options.steps,
            guidance_scale=options.guidance,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            output_type="np",
            callback_on_step_end=step_ends,
        ).images


def one_step(pipeline: diffusers.StableDiffusionPipeline, options: argparse.Namespace) -> object:
    """What the U-Net computes in a step: with guidance, each image with its prompt and without."""
    images = len(options.prompt) * (2 if options.guidance > 1 else 1)
    config, text = pipeline.unet.config, pipeline.text_encoder.config
    side = options.size // pipeline.vae_scale_factor
    words = torch.zeros(images, text.max_position_embeddings, config.cross_attention_dim)
    # The arguments are the pipeline's, since others would be another program.
    return pipeline.unet(
        torch.zeros(images, config.in_channels, side, side),
        torch.tensor(1),
        encoder_hidden_states=words,
        timestep_cond=None,
        cross_attention_kwargs=None,
        added_cond_kwargs=None,
        return_dict=False,
    )


def parser_of_recipe() -> argparse.ArgumentParser:
    """The recipe's options."""
    parser = options_of(__doc__, "stable_diffusion", steps=20)
    parser.add_argument("--model", help="a folder, or a name on the hub; random weights without")
    parser.add_argument("--prompt", nargs="+", default=list(PROMPTS))
    parser.add_argument("--size", type=multiple_of(16), default=128, help="of images, in pixels")
    parser.add_argument("--width", type=multiple_of(8), default=64, help="of the random model")
    parser.add_argument("--guidance", type=float, default=7.5)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main(arguments: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Draw the images twice; return them as f32[prompts, size, size, 3], by who drew them."""
    options = parser_of_recipe().parse_args(arguments)
    torch.manual_seed(0)
    if options.model:
        pipeline = diffusers.StableDiffusionPipeline.from_pretrained(
            options.model, torch_dtype=torch.float32
        )
    else:
        pipeline = random_pipeline(options.width, options.size)
    pipeline.set_progress_bar_config(disable=True)

    images = {"eager": draw(pipeline, options, "eager")}
    compile_parts(pipeline)
    images["openxla"] = draw(pipeline, options, "openxla, compiling")

    def eager_step() -> None:
        with torch.compiler.set_stance("force_eager"):
            one_step(pipeline, options)

    with torch.no_grad():
        seconds = beside_eager(
            "a step", {"openxla": lambda: one_step(pipeline, options), "eager": eager_step}
        )
    save(options.out, images)
    plot(options.out / "seconds.png", seconds=seconds)
    difference = float(np.abs(images["openxla"] - images["eager"]).max())
    print(f"largest difference to eager's images, of 1: {difference:.1e}")
    print(f"upper row openxla's images, lower row eager's: {options.out}/images.png")
    return images


def save(folder: pathlib.Path, images: dict[str, np.ndarray]) -> None:
    """Write one picture: a row for each way, a column for each prompt."""
    rows = [images["openxla"], images["eager"]]
    pictures = diffusers.image_processor.VaeImageProcessor.numpy_to_pil(np.concatenate(rows))
    make_image_grid(pictures, rows=len(rows), cols=len(rows[0])).save(folder / "images.png")


if __name__ == "__main__":
    main()
