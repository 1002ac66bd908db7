"""Names of `torch_xla.experimental.quantized`: torch's operators of `quantized_decomposed`.

The import defines these operators, which the device runs as torch decomposes them.
"""

from typing import Any

import torch

from xla_dynamo.torch_private import define_quantized_decomposed

define_quantized_decomposed()


def _across(x: torch.Tensor, numbers: Any, axis: int | None) -> Any:
    """Scales or zero points of each channel, as x's dimensions have it."""
    if axis is None or not isinstance(numbers, torch.Tensor):
        return numbers
    if numbers.dim() != 1 or numbers.shape[0] not in (1, x.shape[axis]):
        raise ValueError(
            f"scale and zero_point have one number, or {x.shape[axis]} for dimension {axis}, and "
            f"not the shape {tuple(numbers.shape)}"
        )
    return numbers.to(x.device).reshape([-1 if d == axis else 1 for d in range(x.dim())])


def _quantize(
    x: torch.Tensor, scale: Any, zero_point: Any, least: int, most: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.clamp(torch.round(x * (1.0 / scale)) + zero_point, least, most).to(dtype)


def xla_quantize_per_tensor(
    input: torch.Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The integers round(input / scale) + zero_point, between two limits, of an integer dtype."""
    return _quantize(input, scale, zero_point, quant_min, quant_max, dtype)


def xla_quantize_per_channel(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`xla_quantize_per_tensor` with a scale and a zero point for each index of a dimension.

    Raises:
        ValueError: there is another number of them.
    """
    scale, zero_point = (_across(input, x, axis) for x in (scale, zero_point))
    return _quantize(input, scale, zero_point, quant_min, quant_max, dtype)


def xla_dequantize_per_tensor(
    input: torch.Tensor,
    scale: torch.Tensor | float,
    zero_point: torch.Tensor | int,
    axis: int | None = None,
    quant_min: int | None = None,
    quant_max: int | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The float32 numbers (input - zero_point) * scale.

    PyTorch/XLA has the operator for channels under this name, with the dimension that they are of;
    None is for one scale.

    Raises:
        ValueError: there is another number of scales or zero points.
    """
    scale, zero_point = (_across(input, x, axis) for x in (scale, zero_point))
    return (input.float() - zero_point) * scale
