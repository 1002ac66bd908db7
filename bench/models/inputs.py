"""Random inputs for models: each function here returns one from (size, batch) to arguments."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from bench.models.registry import Inputs

T = TypeVar("T")


def sized(full: T, tiny: T, arguments: Callable[[int, T], dict[str, Any]]) -> Inputs:
    """The arguments that `arguments(batch, full)` or `arguments(batch, tiny)` makes."""

    def inputs(size: str, batch: int) -> dict[str, Any]:
        return arguments(batch, tiny if size == "tiny" else full)

    return inputs


def together(*parts: Inputs, **constants: Any) -> Inputs:
    """The arguments of all parts, and those that are the same at every size."""

    def inputs(size: str, batch: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for part in parts:
            made.update(part(size, batch))
        return {**made, **constants}

    return inputs


def floats(name: str, full: tuple[int, ...], tiny: tuple[int, ...]) -> Inputs:
    """One argument of normally distributed numbers, of these sizes without the batch."""
    return sized(full, tiny, lambda batch, sizes: {name: torch.randn(batch, *sizes)})


def integers(name: str, full: tuple[int, ...], tiny: tuple[int, ...], below: int = 99) -> Inputs:
    """One argument of integers from 0, of these sizes without the batch."""
    return sized(full, tiny, lambda batch, sizes: {name: torch.randint(0, below, (batch, *sizes))})


def images(full: int, tiny: int, name: str = "pixel_values") -> Inputs:
    """Square images of three channels."""
    return floats(name, (3, full, full), (3, tiny, tiny))


def tokens(full: int = 128, tiny: int = 12, *, mask: bool = True) -> Inputs:
    """Tokens of a vocabulary of at least 99 and, if wanted, a mask that hides none of them."""

    def arguments(batch: int, length: int) -> dict[str, Any]:
        ids = torch.randint(0, 99, (batch, length))
        return {"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if mask else {})}

    return sized(full, tiny, arguments)
