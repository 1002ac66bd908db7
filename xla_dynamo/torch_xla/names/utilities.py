"""`utils` and `test`."""

from xla_dynamo.torch_xla.names.entries import Names, different, missing, same

_FORMS = "xla_dynamo.torch_xla.forms.utilities"

TABLES: dict[str, Names] = {
    "torch_xla.tf_saved_model_integration": missing(
        "SavedModels are TensorFlow's: save the program by torch_xla.stablehlo.save_as_stablehlo, "
        "and call its text there by tf.raw_ops.XlaCallModule, or in JAX",
        "main make_tf_function save_stablehlo_graph_as_tf save_torch_module_as_tf_saved_model",
    ),
    "torch_xla.utils": {},
    "torch_xla.utils.utils": {
        **same(
            "xla_dynamo.torch_xla.forms.values",
            "Cleaner DataWrapper FnDataGenerator LazyProperty SampleGenerator TmpFolder as_list "
            "flatten_nested_tuple for_each_instance list_copy_append shape",
        ),
        **different(
            "Tuples stay tuples.",
            "xla_dynamo.torch_xla.forms.values",
            "for_each_instance_rewrite",
        ),
        **same(
            "xla_dynamo.torch_xla.forms.surroundings",
            "TimedScope check_env_flag eprint get_free_tcp_ports get_print_fn getenv_as "
            "null_print parallel_work timed",
        ),
    },
    "torch_xla.utils.buffer_donor_context": same(
        "xla_dynamo.lazy.donations", "alias_with_buffer_donor_config"
    ),
    # Releases before 2.9 had this one and `gcsfs`.
    "torch_xla.utils.cached_dataset": same(
        "xla_dynamo.torch_xla.forms.cached_dataset", "CachedDataset"
    ),
    "torch_xla.utils.checkpoint": {
        **same(
            "xla_dynamo.torch_xla.forms.recomputation",
            "CheckpointFunction CheckpointStatus chkpt_status get_device_states set_device_states",
        ),
        **different(
            "`use_reentrant=False` works, too.",
            "xla_dynamo.torch_xla.forms.recomputation",
            "checkpoint",
        ),
    },
    "torch_xla.utils.checkpoint_tagger": same(
        "xla_dynamo.torch_xla.forms.checkpoint_tagger", "CheckpointTagger"
    ),
    "torch_xla.utils.closures": same(
        "xla_dynamo.torch_xla.forms.closures", "AsyncClosureHandler ClosureHandler"
    ),
    "torch_xla.utils.dlpack": {
        **same("xla_dynamo", "to_dlpack"),
        **different("The elements are copied.", "xla_dynamo.torch_xla.forms.dlpack", "from_dlpack"),
    },
    "torch_xla.utils.gcsfs": same(
        "xla_dynamo.torch_xla.forms.files",
        "CLOUD_STORAGE_PREFIX generic_glob generic_open generic_read generic_write is_gcs_path "
        "list open read remove rmtree stat write",
    ),
    "torch_xla.utils.keyd_queue": same(
        "xla_dynamo.torch_xla.forms.queues", "KeydQueue Queue QueueBase"
    ),
    "torch_xla.utils.stablehlo_test_utils": same(
        "xla_dynamo.torch_xla.forms.saved_models",
        "compare_exported_program_and_saved_model_result has_tf_package "
        "load_save_model_and_inference wrap_func_as_nn_module",
    ),
    "torch_xla.utils.serialization": same(
        "xla_dynamo.torch_xla.forms.serialization", "TensorReference load save"
    ),
    "torch_xla.test": {},
    "torch_xla.test.test_utils": {
        **same(
            _FORMS,
            "close_summary_writer get_summary_writer mp_test now print_test_update "
            "print_training_update write_to_summary",
        ),
    },
}
