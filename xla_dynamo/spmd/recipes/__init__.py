"""Recipes: how whole models are sharded over a mesh, by marks on parameters and activations."""

from xla_dynamo.spmd.recipes.checkpointing import checkpoint_module
from xla_dynamo.spmd.recipes.data_parallel import data_parallel, shard_batch
from xla_dynamo.spmd.recipes.expert_parallel import ExpertParallel, mixture_of_experts
from xla_dynamo.spmd.recipes.fully_sharded import SpmdFullyShardedDataParallel
from xla_dynamo.spmd.recipes.plans import plan_of
from xla_dynamo.spmd.recipes.sequence_parallel import (
    HeadsToSequence,
    SequenceToHeads,
    sequence_parallel,
    sequence_parallel_attention,
)
from xla_dynamo.spmd.recipes.styles import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)
from xla_dynamo.spmd.recipes.tensor_parallel import parallelize_module

__all__ = [
    "ColwiseParallel",
    "ExpertParallel",
    "HeadsToSequence",
    "ParallelStyle",
    "RowwiseParallel",
    "SequenceParallel",
    "SequenceToHeads",
    "SpmdFullyShardedDataParallel",
    "checkpoint_module",
    "data_parallel",
    "mixture_of_experts",
    "parallelize_module",
    "plan_of",
    "sequence_parallel",
    "sequence_parallel_attention",
    "shard_batch",
]
