"""Ahead-of-time export: an `ExportedProgram` of torch to portable StableHLO, in a folder.

The public names are those of PyTorch/XLA's `torch_xla.stablehlo`, and `NumpyGraphModule`, which
runs a saved folder without importing torch.
"""

import importlib
from typing import Any

# Looked up at first use: who runs a saved folder with NumPy must not import torch.
_LAZY = {
    "NumpyGraphModule": "numpy_module",
    "StableHLOCompositeBuilder": "composites",
    "StableHLOExportOptions": "export_options",
    "StableHLOGraphModule": "graph_module",
    "exported_program_to_stablehlo": "export",
}

__all__ = [
    "NumpyGraphModule",
    "StableHLOCompositeBuilder",
    "StableHLOExportOptions",
    "StableHLOGraphModule",
    "exported_program_to_stablehlo",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
