"""`utils` and `test`."""

from xla_dynamo.torch_xla.names.entries import Names, missing, other, same

_FORMS = "xla_dynamo.torch_xla.forms.utilities"
_STANDARD = "it is a helper of PyTorch/XLA's own code; use Python's standard library"

TABLES: dict[str, Names] = {
    "torch_xla.utils": {},
    "torch_xla.utils.utils": {
        **same(_FORMS, "SampleGenerator getenv_as timed"),
        **missing(
            _STANDARD,
            "Cleaner DataWrapper FnDataGenerator LazyProperty TimedScope TmpFolder as_list "
            "check_env_flag eprint flatten_nested_tuple for_each_instance "
            "for_each_instance_rewrite get_free_tcp_ports get_print_fn list_copy_append "
            "null_print parallel_work shape",
        ),
    },
    "torch_xla.utils.checkpoint": same("torch.utils.checkpoint", "checkpoint"),
    "torch_xla.utils.dlpack": {
        **same("xla_dynamo", "to_dlpack"),
        **same("torch.utils.dlpack", "from_dlpack"),
    },
    "torch_xla.utils.serialization": {
        **same("xla_dynamo", "save"),
        **other(load="torch:load"),
        **missing("files are those of torch.save", "TensorReference"),
    },
    "torch_xla.utils.closures": missing(
        "use xla_dynamo.add_step_closure", "AsyncClosureHandler ClosureHandler"
    ),
    "torch_xla.utils.keyd_queue": missing("use queue.Queue", "KeydQueue Queue QueueBase"),
    "torch_xla.utils.buffer_donor_context": missing(
        "programs donate what they may by themselves", "alias_with_buffer_donor_config"
    ),
    "torch_xla.test": {},
    "torch_xla.test.test_utils": {
        **same(
            _FORMS,
            "close_summary_writer get_summary_writer print_test_update print_training_update "
            "write_to_summary",
        ),
        **missing("use time.asctime()", "now"),
        **missing("it runs PyTorch/XLA's own tests", "mp_test"),
    },
}
