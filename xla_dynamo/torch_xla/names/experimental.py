"""`experimental`: loops, checkpoints, kernels."""

from xla_dynamo.torch_xla.names.entries import Names, different, missing, same

_LOOPS = "xla_dynamo.torch_xla.forms.loops"
_KERNELS = (
    "kernels of Pallas are for TPU; call torch.nn.functional.scaled_dot_product_attention, or a "
    "function of JAX by xla_dynamo.call_jax"
)
_EXPORT = "xla_dynamo.stablehlo exports open sizes by itself"
_QUANTIZED = "quantize with torchao, whose weights are read as they are"

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
        **missing(
            "it is inside of PyTorch/XLA's loop", "Builder dynamic_slice dynamic_update_slice"
        ),
    },
    "torch_xla.experimental.scan_layers": same(
        "xla_dynamo.torch_xla.forms.scan_layers", "scan_layers"
    ),
    "torch_xla.experimental.fori_loop": same(_LOOPS, "fori_loop while_loop"),
    "torch_xla.experimental.assume_pure": {
        **same(_LOOPS, "assume_pure"),
        **missing(
            "use assume_pure",
            "PureModule assume_pure_torch j2t_autograd make_fake_inputs prepare_computation_inputs",
        ),
    },
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
    "torch_xla.experimental.custom_kernel": missing(
        _KERNELS,
        "FlashAttention flash_attention gmm make_kernel_from_pallas multi_queries_paged_attention "
        "paged_attention quantized_matmul_int8 ragged_paged_attention "
        "repeat_with_fixed_output_size tgmm trace_pallas",
    ),
    "torch_xla.experimental.splash_attention": missing(
        _KERNELS, "SplashAttention SplashAttentionConfig splash_attention"
    ),
    "torch_xla.experimental.quantized": missing(
        _QUANTIZED,
        "xla_dequantize_per_tensor xla_quantize_per_channel xla_quantize_per_tensor",
    ),
    "torch_xla.experimental.xla_quantized_matmul": missing(
        _QUANTIZED, "XlaQuantizedLinear quantized_matmul quantized_matmul_xla"
    ),
    "torch_xla.experimental.stablehlo_custom_call": missing(
        "write a lowering with xla_dynamo.lowers",
        "place_to_device place_to_host stablehlo_custom_call",
    ),
    "torch_xla.experimental.unbounded_dynamism_export": missing(
        _EXPORT, "exported_program_has_symbolic_input_shape"
    ),
    "torch_xla.experimental.xla_marker": missing(
        "use StableHLOCompositeBuilder", "BoundaryMetadata mark_tensor"
    ),
    "torch_xla.experimental.pjrt_backend": {},
}
