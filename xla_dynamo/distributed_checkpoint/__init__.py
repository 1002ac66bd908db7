"""Sharded checkpoints through `torch.distributed.checkpoint`, with PyTorch/XLA's names."""

from xla_dynamo.distributed_checkpoint.manager import CheckpointManager
from xla_dynamo.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner
from xla_dynamo.distributed_checkpoint.priming import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
