"""`interpolate`, exported in every mode, by sizes and by factors; dynamic sizes are refused."""

import pytest
import torch
from torch.nn import functional as F

from tests.stablehlo.exporting import Function, exported
from xla_dynamo.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
DYNAMIC = torch.export.Dim.AUTO
# How many dimensions the images have.
MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "area": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
}
CASES = [
    (mode, dims, antialias)
    for mode, several in MODES.items()
    for dims in several
    for antialias in ((False, True) if mode in ("bilinear", "bicubic") else (False,))
]
WAYS = {
    "size": lambda dims: {"size": [9, 5, 7][:dims]},
    "factor": lambda dims: {"scale_factor": 1.6},
    "exact factor": lambda dims: {"scale_factor": 1.6, "recompute_scale_factor": True},
}


def resized(case, way):
    mode, dims, antialias = case
    settings = {"antialias": True} if antialias else {}
    x = torch.randn(2, 3, *[6, 8, 4][:dims])
    return lambda x: F.interpolate(x, mode=mode, **WAYS[way](dims), **settings), x


@pytest.mark.every(8)
@pytest.mark.parametrize("strict", [False, True], ids=["as called", "by Dynamo"])
@pytest.mark.parametrize("dynamic_batch", [False, True], ids=["fixed", "dynamic batch"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_modes(case, way, dynamic_batch, strict):
    f, x = resized(case, way)
    shapes = (({0: DYNAMIC},),) if dynamic_batch else None
    module = exported(Function(f), x, dynamic_shapes=shapes, strict=strict)
    torch.testing.assert_close(module(x), f(x))


@pytest.mark.every(6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_dynamic_images_are_refused(case, way):
    """Their tables of places and weights have a size that is not known."""
    f, x = resized(case, way)
    dynamic_sizes = {0: DYNAMIC, **dict.fromkeys(range(2, x.ndim), DYNAMIC)}
    with pytest.raises(UnsupportedError, match=r"(?s)dynamic sizes.*test_resampling.py"):
        exported(Function(f), x, dynamic_shapes=((dynamic_sizes,),), strict=True)
