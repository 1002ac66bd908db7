"""diffusers: a pipeline whose U-Net is compiled makes the same images."""

import diffusers
import numpy as np
import torch

from tests.libraries.recipes import run_recipe
from xla_dynamo.runtime import metrics


def tiny_pipeline():
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = diffusers.DDPMPipeline(unet.eval(), diffusers.DDPMScheduler(10))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_pipeline():
    pipeline = tiny_pipeline()
    torch.manual_seed(1)
    expected = pipeline(batch_size=2, num_inference_steps=3, output_type="np").images
    torch.manual_seed(1)
    metrics.clear_all()
    images = run_recipe("diffusers", pipeline=pipeline)["images"]
    assert images.shape == (2, 8, 8, 3)
    np.testing.assert_allclose(images, expected, atol=1e-5)
    assert metrics.counter_value("UncachedCompile") == 1
