"""Apply layouts: permute or copy a tensor on its way into XLA, and restride it on its way out."""

from collections.abc import Callable

import torch

from xla_dynamo.lowerings.builders.strides import Sizes
from xla_dynamo.programs.layouts import InputLayout, Restride

Change = Callable[[torch.Tensor], torch.Tensor]


def preparation(layout: InputLayout) -> Change | None:
    """The function that prepares a tensor for import; None if the tensor is imported as it is."""
    permutation = layout.permutation
    if layout.is_row_major:
        return None
    if layout.is_dense:
        return lambda tensor: tensor.permute(permutation)
    if permutation == tuple(range(len(permutation))):
        return torch.Tensor.contiguous
    return lambda tensor: tensor.permute(permutation).contiguous()


def restriding(given: Restride) -> Change:
    """The function that gives an exported tensor its size and strides."""
    size, stride = given.size, given.stride
    if given.copies:
        return lambda tensor: _with_strides(tensor, stride)
    return lambda tensor: restrided(tensor, size, stride)


def restrided(
    tensor: torch.Tensor, size: Sizes, stride: Sizes, offset: int | None = None
) -> torch.Tensor:
    """as_strided, detached: autograd would not let views of results change in place."""
    return tensor.as_strided(size, stride, offset).detach()


def _with_strides(tensor: torch.Tensor, stride: Sizes) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tuple(stride), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
