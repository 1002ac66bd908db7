"""Decompositions for `options={"rng": "torch"}`: only operators that draw in eager draw here.

An operator that torch runs ends a compiled part. So dropout is decomposed into a draw that reads
nothing but a size, which torch runs, and operators on the numbers drawn, which are compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten

_library = torch.library.Library("xla_dynamo", "FRAGMENT")
_library.define(
    "bernoulli(SymInt[] size, SymInt[] stride, float p, *, ScalarType dtype, Device device)"
    " -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _empty(
    size: Sequence[int], stride: Sequence[int], p: float, *, dtype: Any, device: Any
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _drawn(size: Sequence[int], stride: Sequence[int], p: float, **options: Any) -> torch.Tensor:
    return _empty(size, stride, p, **options).bernoulli_(p)


_library.impl("bernoulli", _drawn, "CompositeExplicitAutograd")
torch.library.register_fake("xla_dynamo::bernoulli", _empty, lib=_library)


def _bernoulli(x: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    """`x.bernoulli_(p)`, which draws in the order of x's memory.

    AOTAutograd makes it `aten.bernoulli.p`, which draws in the order of the indices.
    """
    if generator is not None or x.device.type != "cpu":
        return NotImplemented
    stride = torch.empty_like(x).stride()
    draw = torch.ops.xla_dynamo.bernoulli.default
    return draw(x.shape, stride, p, dtype=x.dtype, device=x.device)  # type: ignore[no-any-return]


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """Eager's dropout of a CPU tensor; other devices have a kernel that draws by itself."""
    if x.device.type != "cpu":
        return NotImplemented
    if train is False or p == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    if p == 1 or x.numel() == 0:  # draws nothing
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    noise = _bernoulli(x, 1 - p)
    return x * (noise / (1 - p)), noise.bool()


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten.bernoulli.p: _bernoulli,
    aten.native_dropout.default: _native_dropout,
}
# Decompositions of other kernels, which draw other numbers.
WHOLE = (aten.bernoulli.default,)
