"""A mesh and a partition spec in one: what loaders take to shard their batches."""

import dataclasses

import torch

from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.spmd.marking import mark_sharding
from xla_dynamo.spmd.partition_spec import PartitionSpec, axes_of


@dataclasses.dataclass(frozen=True)
class ShardingSpec:
    """How tensors are to be sharded, as PyTorch/XLA's `ShardingSpec`.

    Attributes:
        mesh: the devices.
        partition_spec: as `mark_sharding` takes it.
        minibatch: whether each process has loaded its own rows of a batch: those of which its
            devices have shards. Loaders take it, for the device 'xla'. In one process the part is
            the batch, so that it makes no difference.

    Raises:
        ShardingError: the spec names an axis twice, or one that the mesh does not have.

    >>> batches = ShardingSpec(Mesh(range(8), (8,), ("data",)), ("data", None))
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool = False

    def __post_init__(self) -> None:
        self.sharding().check(len(self.partition_spec))

    def can_apply(self, t: torch.Tensor) -> bool:
        """Whether a tensor has as many dimensions as the spec, of sizes that are divisible."""
        return t.dim() == len(self.partition_spec) and self.sharding().shards_evenly(t.shape)

    def apply(self, t: torch.Tensor) -> torch.Tensor:
        """Mark a tensor; returns what `mark_sharding` returns.

        Raises:
            ShardingError: as `mark_sharding`.
        """
        return mark_sharding(t, self.mesh, self.partition_spec)

    def sharding(self) -> Sharding:
        """The sharding that the spec stands for."""
        axes = axes_of(self.mesh, self.partition_spec)
        return Sharding(self.mesh, tuple(tuple(names) for names in axes))
