"""Lets transformers be imported where torchvision is, beside a torch that its library is not for.

torchvision's package on the index is built for CUDA. Beside a torch for CPUs alone its library does
not load, `import torchvision` stops, and so does transformers, though text needs no torchvision.
"""

import contextlib
import importlib.util
import pathlib

import torch

_declared: list[torch.library.Library] = []  # a library's declarations live as long as it does


def declare_missing_operators() -> None:
    """Declare the operators that `import torchvision` misses, if it does."""
    spec = importlib.util.find_spec("torchvision")
    if _declared or spec is None or not spec.submodule_search_locations:
        return
    for path in pathlib.Path(spec.submodule_search_locations[0]).glob("_C.*"):
        with contextlib.suppress(OSError):
            torch.ops.load_library(str(path))
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
