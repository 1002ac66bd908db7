"""Recipes: how whole models are divided over a mesh, by marks on parameters and activations."""

from xla_dynamo.spmd.recipes.data_parallel import data_parallel, shard_batch
from xla_dynamo.spmd.recipes.fully_sharded import SpmdFullyShardedDataParallel

__all__ = ["SpmdFullyShardedDataParallel", "data_parallel", "shard_batch"]
