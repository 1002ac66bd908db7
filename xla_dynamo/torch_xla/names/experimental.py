"""`experimental`: loops and checkpoints."""

from xla_dynamo.torch_xla.names.entries import Names, different, same

_LOOPS = "xla_dynamo.torch_xla.forms.loops"

TABLES: dict[str, Names] = {
    "torch_xla.experimental": {
        **same("xla_dynamo", "eager_mode is_eager_mode"),
        **same("xla_dynamo.torch_xla.forms.xla_model", "eager_mode_context"),
    },
    "torch_xla.experimental.eager": {
        **same("xla_dynamo", "eager_mode is_eager_mode"),
        **same("xla_dynamo.torch_xla.forms.xla_model", "eager_mode_context"),
    },
    "torch_xla.experimental.scan": {
        **same("xla_dynamo.torch_xla.forms.scan", "scan split tree_flatten_none"),
        **same("xla_dynamo.torch_xla.forms.scan_functions", "Scan value_and_grad_partitioned"),
        **same(
            "xla_dynamo.torch_xla.forms.scan_rows", "Builder dynamic_slice dynamic_update_slice"
        ),
    },
    "torch_xla.experimental.scan_layers": same(
        "xla_dynamo.torch_xla.forms.scan_layers", "scan_layers"
    ),
    "torch_xla.experimental.fori_loop": same(_LOOPS, "fori_loop while_loop"),
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": same(
        "xla_dynamo.spmd.recipes", "SpmdFullyShardedDataParallel"
    ),
    "torch_xla.experimental.distributed_checkpoint": same(
        "xla_dynamo.distributed_checkpoint",
        "CheckpointManager SPMDLoadPlanner SPMDSavePlanner prime_optimizer",
    ),
    "torch_xla.experimental.distributed_checkpoint.manager": same(
        "xla_dynamo.distributed_checkpoint", "CheckpointManager"
    ),
    "torch_xla.experimental.distributed_checkpoint.planners": same(
        "xla_dynamo.distributed_checkpoint", "SPMDLoadPlanner SPMDSavePlanner"
    ),
    "torch_xla.experimental.distributed_checkpoint.util": same(
        "xla_dynamo.distributed_checkpoint", "prime_optimizer"
    ),
    "torch_xla.experimental.mark_pattern_utils": same(
        "xla_dynamo.stablehlo", "StableHLOCompositeBuilder"
    ),
    "torch_xla.experimental.gru": different("torch's own.", "torch.nn", "GRU"),
    "torch_xla.experimental.pjrt_backend": {},
}
