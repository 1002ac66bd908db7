"""`distributed`: loaders, processes, shards by marks, and fully sharded models."""

from xla_dynamo.torch_xla.names.entries import Names, different, missing, other, same

_FSDP, _SPMD = "xla_dynamo.distributed.fsdp", "xla_dynamo.spmd"
_FORMS = "xla_dynamo.torch_xla.forms"
_PARTS = f"{_FORMS}.sharded_parameters"
_INSIDE = "it is inside of PyTorch/XLA's wrapper"
_LOADERS: Names = {
    **same(f"{_FORMS}.loaders", "MpDeviceLoader ParallelLoader PerDeviceLoader"),
    **missing("it is inside of PyTorch/XLA's loader", "PerDeviceQueue"),
}
_SHARDED = f"{_FORMS}.sharded_tensors"
_MARKS: Names = {
    **same(
        _SPMD,
        "ShardingSpec clear_sharding disable_manual_sharding enable_manual_sharding "
        "get_global_mesh mark_sharding_with_gradients set_global_mesh",
    ),
    **same(f"{_FORMS}.meshes", "HybridMesh Mesh ShardingType get_1d_mesh"),
    **same(
        f"{_FORMS}.spmd",
        "EinsumLinear MarkShardingFunction XLAPatchedLinear annotate_custom_sharding "
        "apply_backward_optimization_barrier apply_xla_patch_to_nn_linear mark_sharding shard_as "
        "unwrap_sharded_tensor wrap_as_sharded_tensor wrap_if_sharded "
        "xla_patched_nn_linear_forward",
    ),
    **same(_SHARDED, "XLAShard"),
    **different(
        "Tensors with a mark are its instances; it is no class of their own, nor a DTensor.",
        _SHARDED,
        "XLAShardedTensor",
    ),
    **different("A type for annotations.", f"{_FORMS}.spmd", "PartitionSpec"),
    **missing("the operator is xla::mark_sharding here", "aot_mark_sharding_fake"),
}
_BY_DTENSOR: Names = {
    **same(_SPMD, "auto_policy xla_distribute_module"),
    **same(
        f"{_FORMS}.spmd",
        "convert_to_xla_mesh convert_to_xla_partition_spec xla_distribute_tensor",
    ),
    **same(f"{_FORMS}.spmd", "with_xla"),
}
_PICTURES: Names = same(_SPMD, "visualize_sharding visualize_tensor_sharding")

TABLES: dict[str, Names] = {
    "torch_xla.distributed": {},
    "torch_xla.distributed.parallel_loader": _LOADERS,
    "torch_xla.distributed.xla_multiprocessing": {
        **same("xla_dynamo.torch_xla.forms.launching", "spawn"),
        **same("xla_dynamo.torch_xla.forms.utilities", "MpModelWrapper MpSerialExecutor"),
        **missing(
            "it orders TPU chips of v5p and v6e; groups of processes are torch.distributed's",
            "create_optimized_replica_groups device_kind_handler_dict",
        ),
    },
    # Its import registers the backend "xla", which the device does here.
    "torch_xla.distributed.xla_backend": {
        **other(ProcessGroupXla="xla_dynamo.distributed.process_group:XlaProcessGroup"),
        **same(f"{_FORMS}.process_groups", "new_xla_process_group"),
    },
    "torch_xla.distributed.data_parallel": {
        **same(f"{_FORMS}.data_parallel", "Context DataParallel"),
        **missing("there are no threads: DataParallel returns the results", "ThreadResult"),
    },
    "torch_xla.distributed.zero_redundancy_optimizer": same(
        f"{_FORMS}.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"
    ),
    "torch_xla.distributed.spmd": {**_MARKS, **_BY_DTENSOR, **_PICTURES},
    "torch_xla.distributed.spmd.api": _BY_DTENSOR,
    "torch_xla.distributed.spmd.debugging": {
        **_PICTURES,
        **same(f"{_FORMS}.spmd", "RICH_ENABLED"),
    },
    "torch_xla.distributed.spmd.xla_sharding": _MARKS,
    "torch_xla.distributed.spmd.xla_sharded_tensor": {
        **{name: _MARKS[name] for name in ("XLAShard", "XLAShardedTensor")},
        **same(_SHARDED, "no_dispatch"),
    },
    "torch_xla.distributed.fsdp": {
        **same(_FSDP, "XlaFullyShardedDataParallel checkpoint_module"),
        **same(_FSDP, "consolidate_sharded_model_checkpoints consolidate_sharded_state_dicts"),
    },
    "torch_xla.distributed.fsdp.consolidate_sharded_ckpts": same(
        f"{_FSDP}.consolidate_sharded_ckpts", "main"
    ),
    "torch_xla.distributed.fsdp.xla_flatten_params_wrapper": same(
        f"{_FORMS}.flat_parameters",
        "FlatParameter FlatTypes ParamGroups State XlaFlattenParamsWrapper replace_by_prefix_",
    ),
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel": {
        **same(_FSDP, "XlaFullyShardedDataParallel"),
        **same(_PARTS, "FLOAT_DTYPES apply_to_tensors collect_tensors"),
        **missing(_INSIDE, "TrainingState XLA_DISABLE_FUNCTIONALIZATION"),
    },
    "torch_xla.distributed.fsdp.state_dict_utils": same(
        _FSDP, "consolidate_sharded_model_checkpoints consolidate_sharded_state_dicts"
    ),
    "torch_xla.distributed.fsdp.utils": {
        **same(_FSDP, "checkpoint_module"),
        **same(f"{_FORMS}.spmd", "XLAPatchedLinear apply_xla_patch_to_nn_linear"),
        **same(
            _PARTS,
            "BucketizedReduceScatter DummyReduceScatter dummy_all_gather dummy_all_reduce",
        ),
    },
    "torch_xla.distributed.fsdp.wrap": {
        **different(
            "torch's own.",
            "torch.distributed.fsdp.wrap",
            "always_wrap_policy lambda_auto_wrap_policy size_based_auto_wrap_policy "
            "transformer_auto_wrap_policy",
        ),
        **same(_PARTS, "recursive_wrap"),
    },
}
