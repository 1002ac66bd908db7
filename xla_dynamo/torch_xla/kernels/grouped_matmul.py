"""Products of groups of rows: PyTorch/XLA's `gmm` and `tgmm`, which mixtures of experts use."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.torch_xla.kernels.operators import library, operator, runs_on_tpu
from xla_dynamo.xla_builder import call_jax

_TAG = (torch.Tag.pt2_compliant_tag,)
library.define("grouped_product(Tensor input, Tensor weight, Tensor offs) -> Tensor", tags=_TAG)
library.define(
    "grouped_outer_product(Tensor input, Tensor grad_output, Tensor offs) -> Tensor", tags=_TAG
)


def _ranges(offs: torch.Tensor) -> list[slice]:
    return [slice(*pair) for pair in itertools.pairwise([0, *offs.tolist()])]


def _product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Rows [rows, k], sorted by group, times their groups' matrices [groups, k, n].

    `offs` are the groups' ends; rows behind the last one give 0.
    """
    out = input.new_zeros(input.shape[0], weight.shape[2])
    for matrix, rows in zip(weight, _ranges(offs), strict=True):
        out[rows] = input[rows] @ matrix
    return out


def _outer_product(
    input: torch.Tensor, grad_output: torch.Tensor, offs: torch.Tensor
) -> torch.Tensor:
    """For each group its rows' input.T @ grad_output, [groups, k, n]."""
    products = [input[rows].T @ grad_output[rows] for rows in _ranges(offs)]
    return torch.stack(products)


def _like_product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return input.new_empty(input.shape[0], weight.shape[2])


def _like_outer_product(
    input: torch.Tensor, grad_output: torch.Tensor, offs: torch.Tensor
) -> torch.Tensor:
    return input.new_empty(offs.shape[0], input.shape[1], grad_output.shape[1])


def _keep(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients_of_product(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    input, weight, offs = ctx.saved_tensors
    ops = torch.ops.xla
    return (
        ops.grouped_product(grad, weight.mT, offs),
        ops.grouped_outer_product(input, grad, offs),
        None,
    )


def _gradients_of_outer(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, y, offs = ctx.saved_tensors
    ops = torch.ops.xla
    return ops.grouped_product(y, grad.mT, offs), ops.grouped_product(x, grad, offs), None


for _name, _run, _like, _backward in (
    ("grouped_product", _product, _like_product, _gradients_of_product),
    ("grouped_outer_product", _outer_product, _like_outer_product, _gradients_of_outer),
):
    library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"xla::{_name}", _like, lib=library)
    torch.library.register_autograd(f"xla::{_name}", _backward, setup_context=_keep, lib=library)


@operator(
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, "
    "Tensor? group_offset=None, bool transpose_rhs=False) -> Tensor"
)
def gmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Sequence[int] | None = None,
    group_offset: torch.Tensor | None = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """Rows times the matrix of their group: lhs[rows of group i] @ rhs[i].

    Args:
        lhs: [m, k], the rows of one group behind those of another.
        rhs: [groups, k, n], or [groups, n, k] if `transpose_rhs`.
        group_sizes: int32[all groups], how many rows each has.
        tiling: sizes of the tiles of m, k and n, for the kernel on TPU.
        group_offset: an integer, the group that the first matrix is of; rows of groups without a
            matrix give 0.
        transpose_rhs: whether the matrices are transposed.

    Returns:
        [m, n], of lhs's dtype.

    Raises:
        ValueError: the sizes do not fit.
    """
    of_rhs = rhs.mT if transpose_rhs and rhs.dim() == 3 else rhs
    if lhs.dim() != 2 or rhs.dim() != 3 or lhs.shape[1] != of_rhs.shape[1]:
        raise ValueError(
            "gmm takes lhs [m, k] and rhs [groups, k, n], or [groups, n, k] with transpose_rhs, "
            f"and not {tuple(lhs.shape)} and {tuple(rhs.shape)}"
        )
    if runs_on_tpu(lhs.device.type):
        from jax.experimental.pallas.ops.tpu.megablox import gmm as kernel

        tiles = _tiles(lhs.shape[0], *of_rhs.shape) if tiling is None else tuple(tiling)
        offset = None if group_offset is None else group_offset.reshape(())
        operands = (lhs, rhs, group_sizes.int(), lhs.dtype, tiles, offset)
        found: torch.Tensor = call_jax(kernel, operands, {"transpose_rhs": transpose_rhs})
        return found
    weight, ends, first = _chosen(of_rhs, group_sizes, group_offset, len(rhs))
    if first is not None:
        none = torch.zeros_like(weight[:1])
        weight, ends = torch.cat([none, weight]), torch.cat([first, ends])
    made: torch.Tensor = torch.ops.xla.grouped_product(lhs, weight.to(lhs.dtype), ends)
    return made


@operator(
    "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[] tiling=[512, 512, 512], "
    "Tensor? group_offset=None, int? num_actual_groups=None) -> Tensor"
)
def tgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Sequence[int] = (512, 512, 512),
    group_offset: torch.Tensor | None = None,
    num_actual_groups: int | None = None,
) -> torch.Tensor:
    """For each group lhs[:, its columns] @ rhs[its rows], as for gradients of `gmm`'s matrices.

    Args:
        lhs: [k, m].
        rhs: [m, n], the rows of one group behind those of another.
        group_sizes: int32[all groups], how many rows each has.
        tiling: sizes of the tiles of m, k and n, for the kernel on TPU.
        group_offset: an integer, the group of the first result.
        num_actual_groups: how many results there are; as many as groups unless given.

    Returns:
        [groups, k, n], of lhs's dtype; 0 for a group without rows.

    Raises:
        ValueError: the sizes do not fit.
    """
    if lhs.dim() != 2 or rhs.dim() != 2 or lhs.shape[1] != rhs.shape[0]:
        raise ValueError(
            f"tgmm takes lhs [k, m] and rhs [m, n], and not {tuple(lhs.shape)} and "
            f"{tuple(rhs.shape)}"
        )
    count = len(group_sizes) if num_actual_groups is None else num_actual_groups
    if runs_on_tpu(lhs.device.type):
        from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm as kernel

        sizes = (lhs.shape[1], lhs.shape[0], rhs.shape[1])
        tiles = tuple(map(min, tiling, sizes))
        offset = None if group_offset is None else group_offset.reshape(())
        operands = (lhs, rhs, group_sizes.int(), lhs.dtype, tiles, offset, count)
        found: torch.Tensor = call_jax(kernel, operands)
        return found
    _, ends, first = _chosen(None, group_sizes, group_offset, count)
    rows = lhs.mT
    if first is None:
        return torch.ops.xla.grouped_outer_product(rows, rhs.to(lhs.dtype), ends)
    ends = torch.cat([first, ends])
    return torch.ops.xla.grouped_outer_product(rows, rhs.to(lhs.dtype), ends)[1:]


def _chosen(
    weight: Any, group_sizes: torch.Tensor, group_offset: torch.Tensor | None, count: int
) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
    """The matrices, the ends of their groups, and [where the first one begins] if not at 0."""
    ends = group_sizes.cumsum(0).int()
    if group_offset is None:
        return weight, ends[:count], None
    first = group_offset.reshape(1).long()
    numbers = first + torch.arange(count, device=ends.device)
    starts = ends - group_sizes.int()
    return weight, ends[numbers], starts[first]


def _tiles(m: int, groups: int, k: int, n: int) -> tuple[int, int, int]:
    """Tiles for the kernel: of about twice the rows of a group, and of whole matrices if small."""
    return min(_tile(2 * m // groups, 512), m), _tile(k, 2048), _tile(n, 2048)


def _tile(size: int, most: int) -> int:
    """A size as a multiple of 128 up to the largest tile, which divides the size if one does."""
    if size < most:
        return max(-(-size // 128), 1) * 128
    return next((n for n in range(most, 511, -128) if size % n == 0), most)


def gmm_backward(
    grad: torch.Tensor,
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Sequence[int] = (512, 512, 512),
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `gmm`'s lhs and rhs, from that of its result, [m, n]."""
    return gmm(grad, rhs.mT, group_sizes, tiling), tgmm(lhs.mT, grad, group_sizes, tiling)


class GMM:
    """`gmm` as a function for autograd, which it is in any case."""

    @staticmethod
    def apply(
        lhs: torch.Tensor,
        rhs: torch.Tensor,
        group_sizes: torch.Tensor,
        tiling: Sequence[int] = (512, 512, 512),
    ) -> torch.Tensor:
        """Call `gmm`."""
        return gmm(lhs, rhs, group_sizes, tiling)


def repeat_with_fixed_output_size(
    input: torch.Tensor, repeats: torch.Tensor, total_repeat_length: int
) -> torch.Tensor:
    """`torch.repeat_interleave` to a size that is known beforehand.

    Args:
        input: of one dimension.
        repeats: how often each element comes, integers of the same size.
        total_repeat_length: the size of the result: it is cut there, or filled with the last
            element.

    Raises:
        ValueError: the tensors have other dimensions.
    """
    if input.dim() != 1 or input.shape != repeats.shape:
        raise ValueError(
            "repeat_with_fixed_output_size takes two tensors of one dimension and one size, and "
            f"not {tuple(input.shape)} and {tuple(repeats.shape)}"
        )
    place = torch.arange(total_repeat_length, device=input.device)
    found = torch.searchsorted(repeats.cumsum(0), place, right=True)
    return input[found.clamp(max=len(input) - 1)]
