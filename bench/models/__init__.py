"""Real models with random weights, by name: what the demo, the benchmarks and the tests run.

Nothing is downloaded: models are made from the configurations of `transformers` and `diffusers`, or
written here in plain torch. "full" is the size that its name promises, or what a comment beside it
says; "tiny" keeps every kind of layer and is for tests.

    model = build("bert", "full")
    outputs = model(**MODELS["bert"].inputs("full", MODELS["bert"].batch))

One file a family, in `text`, `generation`, `vision`, `speech`, `diffusion`, the convolutional
`convnets`, `mobilenet_v3` and `torchvision_convnets`, and `classics`, `classic_images` and
`recurrent`; `suites` says which models a benchmark runs. `timm_models` has all those of timm.
"""

import torch

from bench.models import (  # noqa: F401  (they register their models)
    classic_images,
    classics,
    convnets,
    diffusion,
    generation,
    mobilenet_v3,
    recurrent,
    speech,
    text,
    torchvision_convnets,
    vision,
)
from bench.models.registry import FAMILIES, MODELS, Model
from bench.models.suites import BFLOAT16, QUICK, RUNTIMES, STANDARD, TRAINING

__all__ = [
    "BFLOAT16", "FAMILIES", "MODELS", "QUICK", "RUNTIMES", "STANDARD", "TRAINING", "Model",
    "build", "build_double", "randomize_constants",
]  # fmt: skip


def build(name: str, size: str, *, seed: int = 0) -> torch.nn.Module:
    """Make a model in eval mode with seeded weights, none of which is a telltale constant."""
    torch.manual_seed(seed)
    model = MODELS[name].make(size).eval()
    randomize_constants(model, seed)
    return model


def build_double(name: str, size: str, *, seed: int = 0) -> torch.nn.Module:
    """The same model in float64, for results that are exact on the scale of float32's."""
    model = build(name, size, seed=seed).double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch's grouped products have no float64
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
