"""Recipes: how whole models are divided over a mesh, by marks on parameters and activations."""

from xla_dynamo.spmd.recipes.checkpointing import checkpoint_module
from xla_dynamo.spmd.recipes.data_parallel import data_parallel, shard_batch
from xla_dynamo.spmd.recipes.fully_sharded import SpmdFullyShardedDataParallel
from xla_dynamo.spmd.recipes.plans import plan_of
from xla_dynamo.spmd.recipes.styles import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)
from xla_dynamo.spmd.recipes.tensor_parallel import parallelize_module

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "RowwiseParallel",
    "SequenceParallel",
    "SpmdFullyShardedDataParallel",
    "checkpoint_module",
    "data_parallel",
    "parallelize_module",
    "plan_of",
    "shard_batch",
]
