"""`debug`: metrics, the profiler, and what compares models."""

from xla_dynamo.torch_xla.names.entries import Names, missing, same

_FORMS = "xla_dynamo.torch_xla.forms.profiler"
_LATER = "read xla_dynamo.metrics, and compare values with torch.testing.assert_close"

TABLES: dict[str, Names] = {
    "torch_xla.debug": {},
    "torch_xla.debug.metrics": {
        **same(
            "xla_dynamo.metrics",
            "clear_all clear_counters clear_metrics counter_names executed_fallback_ops "
            "metric_data metric_names metrics_report",
        ),
        **same("xla_dynamo.torch_xla.forms.metrics", "counter_value short_metrics_report"),
    },
    "torch_xla.debug.profiler": {
        **same(_FORMS, "StepTrace Trace start_server start_trace stop_trace trace_me"),
        **missing(
            "ask the server of start_server from XProf or TensorBoard, or use start_trace",
            "trace trace_detached",
        ),
        **missing(
            "it is the state of PyTorch/XLA's own tracer",
            "get_tracer_marked_step set_tracer_marked_step",
        ),
    },
    "torch_xla.debug.graph_saver": missing("use xla_dynamo.explain", "save_tensors_graph"),
    "torch_xla.debug.metrics_saver": same("xla_dynamo.metrics", "save_metrics"),
    "torch_xla.debug.metrics_compare_utils": missing(
        _LATER, "compare_metrics get_data_points_from_metrics_reports parse_metrics_report"
    ),
    "torch_xla.debug.model_comparator": missing(
        _LATER, "compare compare_tensors configure save tensor_file_compare"
    ),
}
