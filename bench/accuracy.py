"""How far two results are apart, on the scale of the expected one."""

from typing import Any

import torch
from torch.utils import _pytree as pytree


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _pairs(expected: Any, actual: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = list(zip(_tensors(expected), _tensors(actual), strict=True))
    assert pairs, "the model returned no tensor"
    for e, a in pairs:
        assert e.shape == a.shape, f"shape {tuple(e.shape)} against {tuple(a.shape)}"
    return pairs


def rms_error(expected: Any, actual: Any) -> float:
    """The largest relative root mean square error of any output tensor; infinite beside a NaN.

    Raises:
        AssertionError: the results differ in the number or shapes of their tensors.
    """
    worst = 0.0
    for e, a in _pairs(expected, actual):
        e, a = e.to(torch.float64), a.to(torch.float64)
        same = (e == a) | (e.isnan() & a.isnan())
        if bool(same.all()):
            continue
        difference = (e - a).masked_fill(same, 0).norm()
        scale = e.masked_fill(~e.isfinite(), 0).norm().clamp_min(1e-30)
        error = float(difference / scale)
        worst = max(worst, error if error == error else float("inf"))
    return worst


def relative_error(expected: Any, actual: Any) -> float:
    """The largest difference of any output tensor, divided by that tensor's largest magnitude.

    Raises:
        AssertionError: the results differ in the number, shapes or dtypes of their tensors, or
            one has a NaN or infinity where the other has not.
    """
    worst = 0.0
    for e, a in _pairs(expected, actual):
        assert e.dtype == a.dtype, f"dtype {e.dtype} against {a.dtype}"
        if e.numel() == 0:
            continue
        e, a = e.to(torch.float64), a.to(torch.float64)
        finite = e.isfinite()
        assert torch.equal(e[~finite].nan_to_num(), a[~finite].nan_to_num()), "NaN or infinity"
        difference = (e - a)[finite].abs()
        assert bool(difference.isfinite().all()), "NaN or infinity where eager has none"
        if difference.numel():
            scale = e[finite].abs().max().clamp_min(1e-30)
            worst = max(worst, float(difference.max() / scale))
    return worst
