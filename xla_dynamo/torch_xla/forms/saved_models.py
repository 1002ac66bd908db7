"""Names of `torch_xla.utils.stablehlo_test_utils`: SavedModels beside PyTorch's."""

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from xla_dynamo.torch_private import pytree


@functools.cache
def has_tf_package() -> bool:
    """Whether TensorFlow is installed."""
    return importlib.util.find_spec("tensorflow") is not None


def wrap_func_as_nn_module(f: Callable[..., Any]) -> torch.nn.Module:
    """A module, for inference, whose forward is a function of positional arguments."""

    class Wrapped(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return f(*args)

    return Wrapped().eval()


def load_save_model_and_inference(path: str | os.PathLike[str], args: tuple[Any, ...]) -> Any:
    """What a SavedModel's function `f` gives for arguments with tensors of torch.

    Raises:
        ModuleNotFoundError: TensorFlow is not installed.
    """
    import tensorflow as tf  # type: ignore[import-not-found]

    inputs = pytree.tree_map_only(torch.Tensor, lambda t: tf.constant(t.numpy()), args)
    return tf.saved_model.load(os.fspath(path)).f(*inputs)


def compare_exported_program_and_saved_model_result(
    ep: torch.export.ExportedProgram,
    saved_model_path: str | os.PathLike[str],
    args: tuple[Any, ...],
    atol: float = 1e-7,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The results, as NumPy arrays, of an exported program and of its SavedModel.

    Raises:
        AssertionError: they differ in number, dtypes, or by more than `atol`.
        ModuleNotFoundError: TensorFlow is not installed.
    """
    from_tensorflow = [t.numpy() for t in load_save_model_and_inference(saved_model_path, args)]
    with torch.no_grad():
        results = ep.module()(*args)
    from_torch = [t.numpy() for t in (results if isinstance(results, tuple) else (results,))]
    if len(from_torch) != len(from_tensorflow):
        raise AssertionError(f"{len(from_torch)} results, and of TensorFlow {len(from_tensorflow)}")
    for one, other in zip(from_torch, from_tensorflow, strict=True):
        if one.dtype != other.dtype:
            raise AssertionError(f"torch dtype: {one.dtype}, tf dtype: {other.dtype}")
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=atol)
    return tuple(from_torch), tuple(from_tensorflow)
