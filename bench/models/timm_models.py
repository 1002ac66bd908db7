"""Every model of timm, as the benchmark's "timm/NAME", and lots drawn from timm's list of names.

A lot is a test that nobody could prepare for: it has models that are in no suite.
"""

import random
from typing import Any

import torch

from bench.models.registry import Model
from xla_dynamo.torchvision_operators import declare_missing_operators

PREFIX = "timm/"


def timm_model(name: str) -> Model:
    """The model that timm calls so, with random weights and images of the size it was made for.

    Raises:
        KeyError: timm is not installed, or has no such model.
    """
    timm = _timm()
    if timm is None or not timm.is_model(name):
        raise KeyError(f"{PREFIX}{name}: timm is not installed, or has no model of this name")

    def make(size: str) -> torch.nn.Module:
        _refuse_tiny(size)
        return timm.create_model(name, pretrained=False)

    def inputs(size: str, batch: int) -> dict[str, Any]:
        _refuse_tiny(size)
        return {"x": torch.randn(batch, *_image(timm, name))}

    return Model(make, inputs, "timm")


def draw(count: int, seed: int, parameters: float) -> list[str]:
    """Names of so many models with fewer parameters, drawn by seed from those of timm.

    timm's own tests have models called "test_…": these are left out.

    Raises:
        ModuleNotFoundError: timm is not installed.
    """
    timm = _timm()
    if timm is None:
        raise ModuleNotFoundError("timm is not installed: pip install '.[libraries]'")
    names = [name for name in timm.list_models() if not name.startswith("test_")]
    random.Random(seed).shuffle(names)
    drawn: list[str] = []
    for name in names:
        if len(drawn) == count:
            break
        with torch.device("meta"):
            model = timm.create_model(name)
        if sum(p.numel() for p in model.parameters()) < parameters:
            drawn.append(PREFIX + name)
    return drawn


def _timm() -> Any:
    declare_missing_operators()
    try:
        import timm
    except ModuleNotFoundError:
        return None
    return timm


def _image(timm: Any, name: str) -> tuple[int, ...]:
    configuration = timm.get_pretrained_cfg(name)
    return tuple(configuration.input_size) if configuration else (3, 224, 224)


def _refuse_tiny(size: str) -> None:
    if size == "tiny":
        raise ValueError('a model of timm has one size: "full"')
