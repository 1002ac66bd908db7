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
