"""Networks of diffusers, as their own suite compiles them: whole, by blocks, and for resolutions.

That suite lets nothing be compiled again. It does so for Inductor, and compares no numbers.
"""

from typing import Any

import pytest
import torch
from torch.fx.experimental import _config as symbolic_sizes

from bench.models import MODELS, build
from tests.compiling import compiled
from xla_dynamo.variants import background

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# Height and width of the latent images: both change, and so does their ratio.
RESOLUTIONS = [(8, 8), (16, 16), (8, 16), (12, 8)]


def at_resolution(inputs: dict[str, Any], height: int, width: int) -> dict[str, Any]:
    """The inputs with new images; those that a ControlNet reads are twice as high and as wide."""
    changed = {}
    for name, scale in (("sample", 1), ("controlnet_cond", 2)):
        if name in inputs:
            batch, channels = inputs[name].shape[:2]
            changed[name] = torch.randn(batch, channels, scale * height, scale * width)
    return {**inputs, **changed}


@pytest.mark.parametrize(
    ("name", "graphs"), [("diffusion_unet", 2), pytest.param("flux", 3, marks=pytest.mark.slow)]
)
@torch.no_grad()
def test_repeated_blocks(name, graphs, traces, executables):
    """`compile_repeated_blocks` compiles one block of each kind, and the others run it, too.

    There are two kinds. One of Flux's begins with a dense tensor, and goes on with parts of one,
    which Dynamo traces anew for every backend.
    """
    model = build(name, "tiny")
    inputs = MODELS[name].inputs("tiny", 2)
    expected = model(**inputs)
    model.compile_repeated_blocks(backend="openxla", fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for _ in range(2):
            torch.testing.assert_close(model(**inputs), expected, **CLOSE)
    assert traces() == executables() == graphs


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["diffusion_unet", "ddpm_unet", "controlnet", "autoencoder_kl", "vq_model"]
)
@torch.no_grad()
def test_resolutions(name, traces, executables):
    """Height and width are sizes of their own, though they are equal in the first call."""
    model = build(name, "tiny")
    fast = compiled(model, dynamic=True)
    inputs = MODELS[name].inputs("tiny", 2)
    with (
        symbolic_sizes.patch(use_duck_shape=False),
        torch._dynamo.config.patch(error_on_recompile=True),
    ):
        for height, width in RESOLUTIONS:
            given = at_resolution(inputs, height, width)
            torch.testing.assert_close(fast(**given), model(**given), **CLOSE)
    background.wait()
    assert traces() == 1
    assert executables() <= len(RESOLUTIONS)
