"""`runtime`'s older names, plugins, callbacks, and loops over micro-batches."""

from xla_dynamo.torch_xla.names.entries import Names, missing, other, same

_FORMS = "xla_dynamo.torch_xla.forms"
_RUNTIME = "xla_dynamo.runtime"

TABLES: dict[str, Names] = {
    "torch_xla.experimental.pjrt": same(
        _RUNTIME,
        "addressable_device_count device_type global_device_count global_ordinal "
        "local_device_count local_ordinal local_process_count process_count process_index "
        "set_device_type world_size",
    ),
    "torch_xla._internal": {},
    "torch_xla._internal.pjrt": {
        **same("xla_dynamo", "spawn"),
        **same(f"{_FORMS}.multiprocess", "run_multiprocess spawn_threads"),
        **missing(
            "processes are prepared by torch_xla.launch, or by a launcher's environment",
            "initialize_multiprocess initialize_singleprocess",
        ),
    },
    "torch_xla._internal.rendezvous": other(
        pjrt_rendezvous_handler="xla_dynamo.distributed.meetings:meeting"
    ),
    "torch_xla._internal.tpu": {
        **same(f"{_FORMS}.chips", "num_available_chips version"),
        **other(num_available_devices=f"{_FORMS}.chips:num_available_chips"),
        **missing(
            "it asks Google Cloud about a TPU's hosts",
            "configure_one_chip_topology configure_topology discover_master_worker_ip "
            "get_tpu_env get_worker_ips num_local_processes process_bounds_size task_id worker_id",
        ),
    },
    "torch_xla._internal.utils": same(f"{_FORMS}.xla_model", "parse_xla_device"),
    "torch_xla.experimental.callback": same(
        f"{_FORMS}.readiness", "on_ready_callback on_ready_event"
    ),
    "torch_xla.experimental.deprecation": same(
        f"{_FORMS}.deprecation", "deprecated mark_deprecated register_deprecated"
    ),
    "torch_xla.experimental.gradient_accumulation": {
        **same(
            f"{_FORMS}.gradient_accumulation", "GradientAccumulationContext gradient_accumulation"
        ),
        **missing("it builds the loop's HLO by hand in C++", "XlaBuildHelper"),
    },
    "torch_xla.experimental.plugins": same(
        f"{_FORMS}.plugins",
        "DevicePlugin default register_installed_plugins register_plugin use_dynamic_plugins "
        "using_dynamic_plugins",
    ),
    "torch_xla.experimental.pytreeify": same(f"{_FORMS}.tree_functions", "pytreeify"),
    "torch_xla.experimental.xla_dynamic_reshape_ops": {
        **same(f"{_FORMS}.dynamic_sizes", "dynamic_expand dynamic_view"),
        **other(
            dynamic_expand_meta=f"{_FORMS}.dynamic_sizes:dynamic_expand",
            dynamic_expand_xla=f"{_FORMS}.dynamic_sizes:dynamic_expand",
            dynamic_view_meta=f"{_FORMS}.dynamic_sizes:dynamic_view",
            dynamic_view_xla=f"{_FORMS}.dynamic_sizes:dynamic_view",
        ),
    },
}
