"""`experimental`: kernels, functions of JAX, quantized products, custom calls."""

from xla_dynamo.torch_xla.names.entries import Entry, Names, different, missing, other, same

_KERNELS = "xla_dynamo.torch_xla.kernels"
_FLASH, _PAGED = f"{_KERNELS}.flash_attention", f"{_KERNELS}.paged_attention"
_QUANTIZE = f"{_KERNELS}.quantize"
_RAGGED, _GROUPED = f"{_KERNELS}.ragged_paged_attention", f"{_KERNELS}.grouped_matmul"
_QUANTIZED, _JAX = f"{_KERNELS}.quantized_matmul", f"{_KERNELS}.jax_functions"
_SPLASH, _CALLS = f"{_KERNELS}.splash_attention", f"{_KERNELS}.custom_calls"
_PURE, _MARKS = "xla_dynamo.torch_xla.forms.pure_functions", "xla_dynamo.stablehlo.composites"
_MARKERS = "xla_dynamo.torch_xla.forms.composite_marks"
_PALLAS = "jax.experimental.pallas.ops.tpu"
_OF_JAX = "JAX's own."
_RAGGED_OF_JAX = f"{_PALLAS}.ragged_paged_attention"
_COMPUTES = "it is one operator on every device"
_SIZES_OF_JAX = f"{_RAGGED_OF_JAX}.tuned_block_sizes"


def _on_every_device(module: str, *names: str) -> dict[str, Entry]:
    """What PyTorch/XLA registers for its device, and for others, of one operator."""
    return other(
        **{
            f"{name}_{device}": f"{module}:{name}"
            for name in names
            for device in ("xla", "non_xla")
        }
    )


_CUSTOM_KERNEL: Names = {
    **same(_FLASH, "DEFAULT_MASK_VALUE FlashAttention flash_attention"),
    **same(_PAGED, "multi_queries_paged_attention paged_attention"),
    **same(_RAGGED, "ragged_paged_attention"),
    **same(_GROUPED, "GMM gmm gmm_backward repeat_with_fixed_output_size tgmm"),
    **same(_QUANTIZED, "quantized_matmul_int8"),
    **same(
        _JAX,
        "convert_torch_dtype_to_jax jax_import_guard make_kernel_from_pallas requires_jax "
        "to_jax_shape_dtype_struct trace_pallas",
    ),
    **_on_every_device(_FLASH, "flash_attention"),
    **_on_every_device(_PAGED, "multi_queries_paged_attention", "paged_attention"),
    **_on_every_device(_RAGGED, "ragged_paged_attention"),
    **_on_every_device(_GROUPED, "gmm"),
    **_on_every_device(_QUANTIZED, "quantized_matmul_int8"),
    **missing(
        "call flash_attention, whose parts autograd knows",
        "fa_custom_backward fa_custom_backward_fake fa_custom_forward fa_custom_forward_fake "
        "generate_ctx_need_grad safe_empty_like",
    ),
    **missing(_COMPUTES, "non_xla_attetion non_xla_ragged_paged_attention"),
    **missing("JAX keeps what it has traced", "trace_pallas_arg_to_payload"),
}

TABLES: dict[str, Names] = {
    "torch_xla._internal.jax_workarounds": same(
        _JAX, "jax_env_context jax_import_guard maybe_get_jax maybe_get_torchax requires_jax"
    ),
    "torch_xla.experimental.assume_pure": {
        **same(
            _PURE,
            "PureModule assume_pure assume_pure_torch make_fake_inputs prepare_computation_inputs",
        ),
        **same(_JAX, "j2t_autograd"),
    },
    "torch_xla.experimental.custom_kernel": _CUSTOM_KERNEL,
    "torch_xla.experimental.pallas_kernels": {},
    "torch_xla.experimental.pallas_kernels.multi_queries_paged_attention_kernel": {
        **same(_FLASH, "DEFAULT_MASK_VALUE"),
        **missing(
            "call multi_queries_paged_attention of custom_kernel",
            "MIN_BLOCK_SIZE MultiPageAsyncCopyDescriptor paged_attention "
            "paged_flash_attention_kernel",
        ),
    },
    "torch_xla.experimental.pallas_kernels.quantized_matmul_kernel": missing(
        "call quantized_matmul_int8 of custom_kernel",
        "TUNED_BLOCK_SIZES get_tpu_version get_tuned_block_sizes matmul_kernel "
        "quantized_matmul_int8 unfold_args",
    ),
    "torch_xla.experimental.pallas_kernels.ragged_paged_attention_kernel": {
        **same(_FLASH, "DEFAULT_MASK_VALUE"),
        **missing(
            "call the kernel of ragged_paged_attention_v2",
            "MIN_BLOCK_SIZE MultiPageAsyncCopyDescriptor check_kernel_input "
            "make_sequence_metadata paged_flash_attention_kernel ragged_paged_attention",
        ),
    },
    "torch_xla.experimental.pallas_kernels.ragged_paged_attention_v2": {
        **different(
            _OF_JAX,
            f"{_RAGGED_OF_JAX}.kernel",
            "DEFAULT_MASK_VALUE MultiPageAsyncCopyDescriptor dynamic_validate_inputs "
            "get_dtype_packing get_min_heads_per_blk ragged_paged_attention "
            "ragged_paged_attention_kernel ref_ragged_paged_attention static_validate_inputs",
        ),
        **different(_OF_JAX, "jax.experimental.pallas", "cdiv"),
        **different(
            _OF_JAX,
            _SIZES_OF_JAX,
            "MAX_PAGES_PER_SEQ TUNED_BLOCK_SIZES get_device_name get_min_page_size "
            "get_tpu_version get_tuned_block_sizes next_power_of_2 simplify_key",
        ),
    },
    "torch_xla.experimental.quantized": same(
        _QUANTIZE,
        "xla_dequantize_per_tensor xla_quantize_per_channel xla_quantize_per_tensor",
    ),
    "torch_xla.experimental.splash_attention": {
        **same(_SPLASH, "SplashAttention SplashAttentionConfig splash_attention"),
        **missing(
            "call splash_attention, whose parts autograd knows",
            "sa_custom_backward sa_custom_backward_fake sa_custom_forward sa_custom_forward_fake "
            "splash_attention_jax_wrapper tpu_splash_attention_jax_call_wrapper",
        ),
    },
    "torch_xla.experimental.stablehlo_custom_call": same(
        _CALLS,
        "extract_custom_call_outputs_shape_dtype place_to_device place_to_host "
        "stablehlo_custom_call to_device_backward to_host_backward",
    ),
    "torch_xla.experimental.xla_marker": same(
        _MARKERS,
        "BoundaryMetadata BoundaryMetadataSerializer deserialize_composite_attr mark_tensor "
        "mark_tensor_meta mark_tensor_xla serialize_composite_attr",
    ),
    "torch_xla.experimental.xla_mlir_debuginfo": {
        **same(_CALLS, "write_mlir_debuginfo"),
        **other(
            write_mlir_debuginfo_meta=f"{_CALLS}:write_mlir_debuginfo",
            write_mlir_debuginfo_tensor=f"{_CALLS}:write_mlir_debuginfo",
        ),
    },
    "torch_xla.experimental.xla_quantized_matmul": {
        **same(_QUANTIZED, "XlaQuantizedLinear quantized_matmul"),
        **other(quantized_matmul_xla=f"{_QUANTIZED}:quantized_matmul"),
    },
}
_EVERY_KERNEL = (_FLASH, _PAGED, _RAGGED, _GROUPED, _QUANTIZED)
# What a module's import registers in torch, beside names: operators, and attributes of tensors.
IMPORTS: dict[str, tuple[str, ...]] = {
    "torch_xla": (f"{_KERNELS}.user_kernels", "xla_dynamo.torch_xla.forms.tensor_attributes"),
    "torch_xla.experimental.custom_kernel": _EVERY_KERNEL,
    "torch_xla.experimental.stablehlo_custom_call": (_CALLS,),
    "torch_xla.experimental.xla_marker": (_MARKS,),
    "torch_xla.experimental.xla_mlir_debuginfo": (_CALLS,),
    "torch_xla.experimental.quantized": (_QUANTIZE,),
    "torch_xla.experimental.xla_quantized_matmul": (_QUANTIZED, _QUANTIZE),
}
