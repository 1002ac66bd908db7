"""Makes torchvision importable where its compiled operators do not load.

torchvision's package on the index is built for CUDA. Beside a CPU build of torch its library does
not load, and then `import torchvision` stops with "operator torchvision::nms does not exist".
transformers and timm import torchvision, so they stop too. Declaring the two operators is enough.
"""

import importlib.util
import pathlib

import torch

_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a library's declarations live as long as it does


def declare_missing_operators() -> bool:
    """Declare what `import torchvision` needs; return whether that was necessary."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return False
    if not _declared and not _loads(pathlib.Path(spec.submodule_search_locations[0])):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(name + _ARGUMENTS)
        _declared.append(library)
    return bool(_declared)


def _loads(folder: pathlib.Path) -> bool:
    """Whether torchvision's compiled library loads. A library may be loaded twice."""
    try:
        for path in (*folder.glob("_C*.so"), *folder.glob("_C*.pyd")):
            torch.ops.load_library(str(path))
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")
