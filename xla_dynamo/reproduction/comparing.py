"""The difference between a compiled program's results and eager torch's."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

# How far a result may be from eager's, on the scale of the largest number of the result.
_TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.complex128: 1e-9,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
# How often as far it may be as roundings of the inputs move it.
_TIMES_NOISE = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """How results differ from eager's.

    Attributes:
        largest: the largest difference of a number, on the scale of its result.
        wrong: what is wrong, one text for each result; empty if nothing is.
    """

    largest: float
    wrong: tuple[str, ...]


def compare(
    results: Sequence[Any],
    expected: Sequence[Any],
    skip: frozenset[int] = frozenset(),
    noise: Sequence[float] = (),
) -> Difference:
    """Compare results, by number, but for those to skip.

    `noise` is how far eager's own results move when the inputs are rounded otherwise: what cancels
    to nothing, as the gradient of a bias before a batch norm does, is rounding alone.
    """
    largest, wrong = 0.0, []
    if len(results) != len(expected):
        return Difference(float("inf"), (f"{len(results)} results, not {len(expected)}",))
    for index, (found, wanted) in enumerate(zip(results, expected, strict=True)):
        if index in skip:
            continue
        difference, text = _one(found, wanted, noise[index] if noise else 0.0)
        largest = max(largest, difference)
        if text:
            wrong.append(f"result {index}: {text}")
    return Difference(largest, tuple(wrong))


def noise_of(other: Any, wanted: Any) -> float:
    """The largest distance of a result from the same one of inputs that were rounded otherwise."""
    if not isinstance(wanted, torch.Tensor) or wanted.numel() == 0:
        return 0.0
    if not isinstance(other, torch.Tensor) or other.shape != wanted.shape:
        return 0.0
    if not wanted.dtype.is_floating_point and not wanted.dtype.is_complex:
        return 0.0
    distance = (_plain(other) - _plain(wanted)).abs()
    return float(distance[distance.isfinite()].max()) if bool(distance.isfinite().any()) else 0.0


def _one(found: Any, wanted: Any, noise: float) -> tuple[float, str]:
    if not isinstance(wanted, torch.Tensor):
        return (0.0, "") if found == wanted else (float("inf"), f"{found!r}, not {wanted!r}")
    kind, other = (f"{t.dtype} {list(t.shape)}" for t in (found, wanted))
    if kind != other:
        return float("inf"), f"{kind}, not {other}"
    if found.numel() == 0:
        return 0.0, ""
    x, y = _plain(found), _plain(wanted)
    if not wanted.dtype.is_floating_point and not wanted.dtype.is_complex:
        wrong = int((x != y).sum())
        return (1.0, f"{wrong} of {x.numel()} elements differ") if wrong else (0.0, "")
    same = (x == y) | (x.isnan() & y.isnan())
    if bool(same.all()):
        return 0.0, ""
    finite = x.isfinite() & y.isfinite()
    if not bool((same | finite).all()):
        wrong = int((~(same | finite)).sum())
        return float("inf"), f"{wrong} of {x.numel()} elements are NaN or infinite in one of both"
    scale = float(y[y.isfinite()].abs().max()) or 1.0
    distance = (x - y).abs().masked_fill(same, 0.0)
    largest = float(distance.max()) / scale
    tolerance = max(_TOLERANCES.get(wanted.dtype, 0.2), _TIMES_NOISE * noise / scale)  # float8
    if largest <= tolerance:
        return largest, ""
    count = int((distance > tolerance * scale).sum())
    return largest, f"{count} of {x.numel()} elements differ, by up to {largest:.3g} on its scale"


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float64)
    return tensor
