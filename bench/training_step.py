"""A training step of a model with a backend: forward, loss, backward, AdamW."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.backends import BACKENDS

Step = Callable[[], torch.Tensor]


def make_step(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    loss: Callable[[Any], torch.Tensor],
    backend: str,
    autocast: Callable[[], Any] = contextlib.nullcontext,
) -> Step:
    """A step that returns the loss. With "openxla-step" it is one executable (`train_step`)."""
    model.train()
    # With the default of 1e-8, gradients that are only rounding move parameters by their sign.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, eps=1e-6)
    if backend == "openxla-step":
        import xla_dynamo

        def loss_fn(model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
            with autocast():
                return loss(model(**inputs))

        whole = xla_dynamo.train_step(model, loss_fn, optimizer)
        return lambda: whole(inputs)
    forward = BACKENDS[backend].compile(model)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with autocast():
            value = loss(forward(**inputs))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def changes(model: torch.nn.Module, step: Step) -> list[torch.Tensor]:
    """The losses of two steps, and by how much they changed the parameters, all in one tensor."""
    before = [p.detach().clone() for p in model.parameters()]
    losses = [step().detach().cpu().clone() for _ in range(2)]
    after = [p.detach() for p in model.parameters()]
    moved = [(a.double() - b.double()).flatten() for a, b in zip(after, before, strict=True)]
    return [*losses, torch.cat(moved)]


@contextlib.contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[bool]:
    """Every probability of dropout is 0 inside, so that results can be compared.

    Yields:
        Whether there was any.
    """
    found = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and value > 0 and ("drop" in name or _is_rate(module, name))
    ]
    for module, name, _ in found:
        setattr(module, name, 0.0)
    try:
        yield bool(found)
    finally:
        for module, name, value in found:
            setattr(module, name, value)


def _is_rate(module: torch.nn.Module, name: str) -> bool:
    return name == "p" and isinstance(module, torch.nn.modules.dropout._DropoutNd)
