"""What a model of the benchmark is, and the one way to enter it: a name to a `Model`."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bench.models.suites import suites_of

Inputs = Callable[[str, int], dict[str, Any]]

FAMILIES = ("text", "generation", "vision", "speech", "diffusion", "convnet", "classic")


def squared_distance(outputs: Any) -> torch.Tensor:
    """A loss for any model: how far its floating outputs are from ramps between -1 and 1.

    A ramp, because the mean square itself is constant after a normalization: it has no gradient.
    """
    total = torch.zeros(())
    for output in pytree.tree_leaves(outputs):
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            ramp = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device)
            total = total + (output - ramp.view(output.shape)).square().mean()
    return total


@dataclasses.dataclass(frozen=True)
class Model:
    """How to make a model and its inputs, and where the benchmark uses it.

    Attributes:
        make: size ("tiny" or "full") to a module with random weights.
        inputs: (size, batch) to keyword arguments of its forward.
        family: one of `FAMILIES`, or "timm".
        batch: how many examples the benchmark gives the full size.
        suites: those that it is in: "full", and those of `suites.SUITES`.
        trains: training mode makes sense, and every step does the same work.
        whole: Dynamo makes one graph of it; it breaks the graph at `nn.LSTM`, for one.
        loss: what forward returns to a scalar to be minimized.
    """

    make: Callable[[str], torch.nn.Module]
    inputs: Inputs
    family: str
    batch: int = 4
    suites: frozenset[str] = frozenset({"full"})
    trains: bool = True
    whole: bool = True
    loss: Callable[[Any], torch.Tensor] = squared_distance


class Models(dict[str, Model]):
    """The registered models by name and, though it does not list them, timm's as "timm/NAME"."""

    def __missing__(self, name: str) -> Model:
        from bench.models import timm_models

        if not name.startswith(timm_models.PREFIX):
            raise KeyError(name)
        return timm_models.timm_model(name.removeprefix(timm_models.PREFIX))

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of the names that no model has."""
        return [name for name in names if not self._has(name)]

    def _has(self, name: str) -> bool:
        try:
            return bool(self[name])
        except KeyError:
            return False


MODELS = Models()


def register(
    name: str,
    source: str | Callable[..., torch.nn.Module],
    full: dict[str, Any],
    tiny: dict[str, Any],
    inputs: Inputs,
    *,
    family: str,
    batch: int = 4,
    trains: bool = True,
    whole: bool = True,
) -> None:
    """Enter a model that is `source(**full)` or `source(**tiny)`.

    A source given as text, "transformers.BertModel", is imported when the model is first made; if
    it has a configuration class, the settings are that class's.
    """
    if name in MODELS:
        raise ValueError(f"two models are named {name}")
    if family not in FAMILIES:
        raise ValueError(f"{name} is of the unknown family {family!r}")

    def make(size: str) -> torch.nn.Module:
        settings = tiny if size == "tiny" else full
        if callable(source):
            return source(**settings)
        module, _, attribute = source.rpartition(".")
        model = getattr(importlib.import_module(module), attribute)
        configuration = getattr(model, "config_class", None)
        return model(configuration(**settings)) if configuration else model(**settings)

    MODELS[name] = Model(make, inputs, family, batch, suites_of(name), trains, whole)
