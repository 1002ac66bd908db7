"""Names of `torch_xla.stablehlo` that write folders."""

import os
from typing import Any

import torch
from torch.export import ExportedProgram

from xla_dynamo.stablehlo import StableHLOExportOptions, exported_program_to_stablehlo


def save_as_stablehlo(
    exported_model: ExportedProgram,
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Write an exported program to a folder, as `StableHLOGraphModule.save` does."""
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Export a model for arguments, and write it to a folder."""
    save_as_stablehlo(torch.export.export(torchmodel, tuple(args)), path, options)
