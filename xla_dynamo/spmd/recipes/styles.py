"""Styles of tensor parallel: how a module's parameters and activations lie over one axis.

The names and layouts are those of `torch.distributed.tensor.parallel`. A layout says how one axis
of the mesh shards a tensor: `Shard(dim)` or `Replicate()` of `torch.distributed.tensor`. It leaves
the other axes to the partitioner.
"""

import abc
from collections.abc import Callable
from typing import Protocol

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.recipes.activations import map_tensors, replicate, shard_dimension
from xla_dynamo.spmd.recipes.forwards import map_inputs, map_output
from xla_dynamo.spmd.recipes.parameters import shard_parameter


class Layout(Protocol):
    """What the placements of torch.distributed.tensor say of themselves."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether it shards a dimension, its attribute `dim`."""

    def is_replicate(self) -> bool:
        """Whether it leaves the tensor whole."""


class ParallelStyle(abc.ABC):
    """How one module is sharded over one axis of a mesh."""

    @abc.abstractmethod
    def apply(self, module: torch.nn.Module, name: str, mesh: Mesh, axis: str) -> None:
        """Mark a module's parameters, and have its forward mark activations.

        Raises:
            ShardingError: a parameter cannot be sharded so, or the module is of no kind that the
                style is for.
        """


class ColwiseParallel(ParallelStyle):
    """Shard what a layer makes: each device computes some of its features.

    For `Linear`, `Embedding` and transformers' `Conv1D`. The output is sharded by its last
    dimension and gathered nowhere, unless a layout asks for it.

    Args:
        input_layouts: for the names' sake: whatever it is, the input becomes whole along the axis.
        output_layouts: how the output is sharded: by the last dimension, unless it is given.
    """

    def __init__(
        self, *, input_layouts: Layout | None = None, output_layouts: Layout | None = None
    ) -> None:
        self.output_layouts = output_layouts

    def apply(self, module: torch.nn.Module, name: str, mesh: Mesh, axis: str) -> None:
        """Mark the parameters of a layer: see `ParallelStyle`."""
        _, features = _weight_dims(module, name, "ColwiseParallel")
        shard_parameter(_weight(module), mesh, axis, features, f"{name}.weight")
        if (bias := getattr(module, "bias", None)) is not None:
            shard_parameter(bias, mesh, axis, 0, f"{name}.bias")
        if not isinstance(module, torch.nn.Embedding):
            _mark_inputs(module, lambda x: replicate(x, mesh, axis))
        _mark_outputs(module, _marker(self.output_layouts, -1, mesh, axis))


class RowwiseParallel(ParallelStyle):
    """Shard what a layer reads: each device has some of the terms, and the devices add them up.

    For `Linear`, `Embedding` (sharded by its vocabulary) and transformers' `Conv1D`.

    Args:
        input_layouts: for the names' sake: whatever it is, the input becomes sharded by its last
            dimension.
        output_layouts: how the sum is sharded: it is whole, unless this is given. `Shard(1)` leaves
            each device a part of the sequence.
    """

    def __init__(
        self, *, input_layouts: Layout | None = None, output_layouts: Layout | None = None
    ) -> None:
        self.output_layouts = output_layouts

    def apply(self, module: torch.nn.Module, name: str, mesh: Mesh, axis: str) -> None:
        """Mark the weight of a layer; its bias, which is added to the sum, stays whole."""
        terms, _ = _weight_dims(module, name, "RowwiseParallel")
        shard_parameter(_weight(module), mesh, axis, terms, f"{name}.weight")
        if isinstance(module, torch.nn.Embedding):
            # The rows that a device lacks are zeros, to be added up. If the first mark sharded the
            # sequence, the partitioner would rather gather the weight.
            _mark_outputs(module, lambda x: replicate(x, mesh, axis))
        else:
            _mark_inputs(module, lambda x: shard_dimension(x, mesh, -1, (axis,)))
        _mark_outputs(module, _marker(self.output_layouts, None, mesh, axis))


class SequenceParallel(ParallelStyle):
    """Shard the sequence where a module computes element by element: a norm, or dropout.

    Its parameters stay whole. Between two such modules the layers gather the sequence and shard
    features in its place, so that together they hold no activation whole.

    Args:
        sequence_dim: the dimension of the sequence.
    """

    def __init__(self, *, sequence_dim: int = 1) -> None:
        self.sequence_dim = sequence_dim

    def apply(self, module: torch.nn.Module, name: str, mesh: Mesh, axis: str) -> None:
        """Have the module's forward mark what it takes and returns."""

        def shard(x: torch.Tensor) -> torch.Tensor:
            return shard_dimension(x, mesh, self.sequence_dim, (axis,))

        _mark_inputs(module, shard)
        _mark_outputs(module, shard)


def _marker(
    layout: Layout | None, default: int | None, mesh: Mesh, axis: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function that gives tensors a layout: by the default's dimension, or whole for None."""
    dim: int | None = default
    if layout is not None:
        if not layout.is_shard() and not layout.is_replicate():
            raise ShardingError(f"a layout is Shard(dim) or Replicate(), not {layout}")
        dim = layout.dim if layout.is_shard() else None  # type: ignore[attr-defined]

    def mark(x: torch.Tensor) -> torch.Tensor:
        return replicate(x, mesh, axis) if dim is None else shard_dimension(x, mesh, dim, (axis,))

    return mark


def _mark_inputs(module: torch.nn.Module, mark: Callable[[torch.Tensor], torch.Tensor]) -> None:
    map_inputs(module, lambda given: map_tensors(mark, given))


def _mark_outputs(module: torch.nn.Module, mark: Callable[[torch.Tensor], torch.Tensor]) -> None:
    map_output(module, lambda output: map_tensors(mark, output, in_place=True))


def _weight(module: torch.nn.Module) -> torch.Tensor:
    return module.weight  # type: ignore[return-value]


def _weight_dims(module: torch.nn.Module, name: str, style: str) -> tuple[int, int]:
    """Which dimension of a layer's weight are the features that it reads, and that it makes."""
    if isinstance(module, torch.nn.Linear):
        return 1, 0
    if isinstance(module, torch.nn.Embedding) or type(module).__name__ == "Conv1D":
        return 0, 1
    raise ShardingError(
        f"{style} shards Linear, Embedding and Conv1D, and {name} is a {type(module).__name__}: "
        "name the layers in it in the plan, or write a ParallelStyle for it"
    )
