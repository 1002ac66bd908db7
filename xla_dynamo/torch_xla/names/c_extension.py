"""`_XLAC`: of PyTorch/XLA's extension in C++, the functions that scripts call themselves."""

from xla_dynamo.torch_xla.names.entries import Names, other, same

_RUNTIME, _METRICS = "xla_dynamo.runtime", "xla_dynamo.metrics"
_DONATIONS = "xla_dynamo.lazy.donations"
_MET = "xla_dynamo.torch_xla.forms.metrics"

TABLES: dict[str, Names] = {
    "torch_xla._XLAC": {
        **same(
            "xla_dynamo.torch_xla.forms.c_extension",
            "_check_tensor_need_materialization _get_git_revs _get_ir_debug "
            "_init_computation_client _on_ready_callback _replace_xla_tensor _set_ir_debug "
            "_unsafe_buffer_pointer _xla_device_kind _xla_dot_general "
            "_xla_get_all_devices _xla_get_default_device _xla_get_device_ordinal "
            "_xla_get_devices _xla_get_replication_devices _xla_get_replication_devices_count "
            "_xla_get_runtime_devices _xla_increment_counter _xla_memory_info "
            "_xla_optimization_barrier_ _xla_runtime_is_initialized _xla_set_default_device "
            "_xla_set_replication_devices _xla_set_rng_seed _xla_set_use_full_mat_mul_precision "
            "_xla_step_marker _xla_sync_live_tensors _xla_sync_multi _xla_tensors_from_aten "
            "_xla_wait_device_ops",
        ),
        **same(
            "xla_dynamo.torch_xla.forms.sharding_functions",
            "OpSharding _get_local_shard_replica_and_indices _get_local_shards "
            "_get_xla_op_sharding _get_xla_sharding_spec _get_xla_sharding_specs "
            "_get_xla_sharding_type _load_local_shards _xla_annotate_custom_sharding "
            "_xla_clear_sharding _xla_mark_sharding",
        ),
        **other(
            _clear_xla_counters=f"{_METRICS}:clear_counters",
            _clear_xla_metrics=f"{_METRICS}:clear_metrics",
            _get_xla_sharding_spec="xla_dynamo.spmd:get_sharding_text",
            _get_executed_fallback_ops=f"{_METRICS}:executed_fallback_ops",
            _get_buffer_donation=f"{_DONATIONS}:get_buffer_donation",
            _is_placecholder="xla_dynamo.lazy.placeholders:is_placeholder",
            _set_buffer_donation=f"{_DONATIONS}:set_buffer_donation",
            _xla_get_enable_alias_with_buffer_donor_config=f"{_DONATIONS}:is_for_all",
            _xla_set_enable_alias_with_buffer_donor_config=f"{_DONATIONS}:set_for_all",
            _short_xla_metrics_report=f"{_MET}:short_metrics_report",
            _xla_counter_names=f"{_METRICS}:counter_names",
            _xla_counter_value=f"{_MET}:counter_value",
            _xla_get_all_device_attributes=f"{_RUNTIME}:global_runtime_device_attributes",
            _xla_get_default_device_ordinal=f"{_RUNTIME}:global_ordinal",
            _xla_get_device_attributes=f"{_RUNTIME}:runtime_device_attributes",
            _xla_get_mat_mul_precision="xla_dynamo.torch_xla.forms.xla_model:get_mat_mul_precision",
            _xla_metric_data=f"{_METRICS}:metric_data",
            _xla_metric_names=f"{_METRICS}:metric_names",
            _xla_metrics_report=f"{_METRICS}:metrics_report",
            _xla_num_devices=f"{_RUNTIME}:addressable_device_count",
            _xla_num_global_devices=f"{_RUNTIME}:global_device_count",
            _xla_num_runtime_devices=f"{_RUNTIME}:addressable_runtime_device_count",
            _xla_real_devices="xla_dynamo.torch_xla.forms.xla_model:xla_real_devices",
            _xla_set_mat_mul_precision="xla_dynamo.torch_xla.forms.xla_model:set_mat_mul_precision",
        ),
    },
}
