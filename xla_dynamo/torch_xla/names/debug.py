"""`debug`: metrics, the profiler, and what compares models."""

from xla_dynamo.torch_xla.names.entries import Names, different, same

_PROFILER = "xla_dynamo.torch_xla.forms.profiler"

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
        **same(
            _PROFILER,
            "StepTrace Trace start_server start_trace stop_trace trace_me",
        ),
        **same("xla_dynamo.lazy.steps", "get_tracer_marked_step set_tracer_marked_step"),
        **different(
            "Profiles of other processes need the package xprof.",
            _PROFILER,
            "trace trace_detached",
        ),
    },
    "torch_xla.debug.frame_parser_util": same(
        "xla_dynamo.torch_xla.forms.frame_reports",
        "create_report parse_frame_content parse_frames process_frames",
    ),
    "torch_xla.debug.metrics_saver": same("xla_dynamo.metrics", "save_metrics"),
    "torch_xla.debug.metrics_compare_utils": same(
        "xla_dynamo.torch_xla.forms.metrics_comparison",
        "compare_metrics get_data_points_from_metrics_reports parse_metrics_report",
    ),
    "torch_xla.debug.model_comparator": same(
        "xla_dynamo.torch_xla.forms.model_comparison",
        "compare compare_tensors configure save tensor_file_compare",
    ),
}
