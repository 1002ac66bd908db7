"""The package itself, `core`, `runtime`, `amp`, `backends` and `stablehlo`."""

from xla_dynamo.torch_xla.names.entries import Names, different, other, same

_OURS, _RUNTIME = "xla_dynamo", "xla_dynamo.runtime"
_MODEL = "xla_dynamo.torch_xla.forms.xla_model"
_AMP = "xla_dynamo.torch_xla.forms.amp"

_XLA_MODEL: Names = {
    **same(
        _OURS,
        "add_step_closure all_gather all_reduce all_to_all broadcast_master_param "
        "collective_broadcast collective_permute do_on_ordinals get_local_ordinal get_memory_info "
        "get_ordinal is_master_ordinal mark_step master_print mesh_reduce "
        "optimizer_step reduce_gradients reduce_scatter rendezvous save unlazy "
        "wait_device_ops xla_device xla_device_hw xrt_world_size",
    ),
    **same(
        "xla_dynamo.distributed.collectives",
        "REDUCE_AND REDUCE_MAX REDUCE_MIN REDUCE_MUL REDUCE_OR REDUCE_SUM",
    ),
    **same(
        _MODEL,
        "RateTracker check_view_sharing get_xla_supported_devices is_xla_tensor "
        "optimization_barrier_ parse_xla_device xla_real_devices",
    ),
    **other(xla_device_kind="xla_dynamo:xla_device_hw"),
    **same(_MODEL, "_fetch_gradients _maybe_convert_to_cpu fork_rng"),
    **different(
        "Asking where something was drawn gives the random numbers that seed.",
        "xla_dynamo.torch_xla.forms.random_state",
        "get_rng_state",
    ),
    **same("xla_dynamo.torch_xla.forms.random_state", "set_rng_state"),
    **same(
        "xla_dynamo.torch_xla.forms.buckets",
        "CoalescingBuckets all_gather_bucketized all_reduce_bucketized_gradients "
        "reduce_scatter_bucketized",
    ),
    **same(
        "xla_dynamo.torch_xla.forms.replicas",
        "DeviceContext MemoryInfo recv send set_replication xla_rendezvous xla_replication_devices",
    ),
    **same("xla_dynamo.torch_xla.forms.arenas", "ToXlaTensorArena send_cpu_data_to_device"),
    **same("xla_dynamo.torch_xla.forms.dynamic_sizes", "XLA_LIB"),
}

TABLES: dict[str, Names] = {
    "torch_xla": {
        **same(
            _OURS,
            "compile device device_count devices manual_seed real_devices step sync",
        ),
        **same("xla_dynamo.torch_xla.forms.launching", "launch"),
        **same(
            "xla_dynamo.torch_xla.forms.stablehlo",
            "save_as_stablehlo save_torch_model_as_stablehlo",
        ),
        **other(__version__="xla_dynamo.torch_xla.forms.xla_model:VERSION"),
    },
    "torch_xla.torch_xla": {
        **same(_OURS, "compile device device_count devices manual_seed real_devices step sync"),
        **same("xla_dynamo.torch_xla.forms.launching", "launch"),
    },
    "torch_xla.version": other(__version__="xla_dynamo.torch_xla.forms.xla_model:VERSION"),
    "torch_xla.core": {},
    "torch_xla.core.xla_model": _XLA_MODEL,
    "torch_xla.core.functions": same(
        "xla_dynamo.torch_xla.forms.functions",
        "AllGather AllReduce AllReduceSumLayer SyncBatchNorm all_gather all_reduce distributed_mm",
    ),
    "torch_xla.core.dynamo_bridge": {},
    "torch_xla.core.xla_env_vars": same(
        "xla_dynamo.torch_xla.forms.environment_names",
        "TPUVM_MODE TPU_NUM_DEVICES CPU_NUM_DEVICES CLOUD_TPU_TASK_ID ACCELERATOR_TYPE "
        "WORKER_ID TPU_SKIP_MDS_QUERY TPU_ACCELERATOR_TYPE TPU_WORKER_ID TPU_WORKER_HOSTNAMES "
        "TPU_HOST_BOUNDS TPU_CHIPS_PER_HOST_BOUNDS TPU_MESH_CTLER_ADDR TPU_MESH_CTLER_PORT "
        "PJRT_DEVICE PJRT_SELECT_DEFAULT_DEVICE PJRT_LOCAL_PROCESS_RANK "
        "PJRT_LOCAL_PROCESS_COUNT PJRT_DYNAMIC_PLUGINS TPU_CHIPS_PER_PROCESS_BOUNDS "
        "TPU_PROCESS_BOUNDS TPU_PROCESS_ADDRESSES TPU_VISIBLE_CHIPS TPU_PROCESS_PORT "
        "PJRT_CPU_ASYNC_CLIENT PJRT_DIST_SERVICE_ADDR LOCAL_RANK RANK WORLD_SIZE "
        "LOCAL_WORLD_SIZE ",
    ),
    "torch_xla.runtime": {
        **same(
            _RUNTIME,
            "addressable_device_count addressable_runtime_device_count device_type "
            "global_device_count global_ordinal global_runtime_device_attributes "
            "global_runtime_device_count initialize_cache is_spmd local_device_count "
            "local_ordinal local_process_count process_count process_index "
            "runtime_device_attributes set_device_type use_spmd world_size",
        ),
        **other(host_index="xla_dynamo.runtime:process_index"),
        **same(_MODEL, "get_master_ip get_num_cached_compilation_graph is_bf16_supported"),
    },
    "torch_xla.amp": {
        **same(_AMP, "GradScaler autocast"),
        **other(syncfree="torch_xla.amp.syncfree"),
    },
    "torch_xla.amp.autocast_mode": same(_AMP, "autocast"),
    "torch_xla.amp.grad_scaler": same(_AMP, "GradScaler"),
    "torch_xla.amp.syncfree": same(_AMP, "Adam AdamW SGD"),
    "torch_xla.amp.syncfree.adam": same(_AMP, "Adam"),
    "torch_xla.amp.syncfree.adamw": same(_AMP, "AdamW"),
    "torch_xla.amp.syncfree.sgd": same(_AMP, "SGD"),
    "torch_xla.backends": same(
        "xla_dynamo.torch_xla.forms.xla_model", "get_mat_mul_precision set_mat_mul_precision"
    ),
}
