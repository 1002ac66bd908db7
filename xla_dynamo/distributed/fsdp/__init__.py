"""PyTorch/XLA's fully sharded data parallel: each process has a part of every parameter."""

from xla_dynamo.distributed.fsdp.consolidation import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)
from xla_dynamo.distributed.fsdp.fully_sharded import XlaFullyShardedDataParallel
from xla_dynamo.spmd.recipes.checkpointing import checkpoint_module

__all__ = [
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]
