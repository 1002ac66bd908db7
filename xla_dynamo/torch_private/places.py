"""Where torch has its private names, each with what we use it for."""

import importlib
from typing import Any

import torch

SUPPORTED = "torch 2.11 to 2.15"

# Our name: where it is in torch, and what it does for us.
PLACES: dict[str, tuple[str, str]] = {
    "OpOverload": ("torch._ops:OpOverload", "an operator of a graph"),
    "OpOverloadPacket": ("torch._ops:OpOverloadPacket", "all overloads of an operator"),
    "HigherOrderOperator": ("torch._ops:HigherOrderOperator", "an operator on graphs"),
    "scan": ("torch._higher_order_ops.scan:scan", "torch's scan in a function"),
    "while_loop": ("torch._higher_order_ops.while_loop:while_loop", "its while_loop there"),
    "scan_op": ("torch._higher_order_ops.scan:scan_op", "torch's scan in a graph"),
    "while_loop_op": ("torch._higher_order_ops.while_loop:while_loop_op", "its while_loop"),
    "DispatchKey": ("torch._C:DispatchKey", "names an operator's kernels"),
    "all_operator_names": (
        "torch._C:_dispatch_get_all_op_names",
        "every overload that is registered, as in 'aten::add.Tensor'",
    ),
    "has_kernel": ("torch._C:_dispatch_has_kernel_for_dispatch_key", "of its own, under a key"),
    "DispatchKeySet": ("torch._C:DispatchKeySet", "says which kernels of an operator to call"),
    "included_keys": ("torch._C:_dispatch_tls_local_include_set", "keys that a thread adds"),
    "excluded_keys": ("torch._C:_dispatch_tls_local_exclude_set", "keys that a thread leaves out"),
    "ExcludeDispatchKeys": ("torch._C:_ExcludeDispatchKeyGuard", "leaves keys out for a block"),
    "ForceDispatchKeys": ("torch._C:_ForceDispatchKeyGuard", "sets both for a block"),
    "DisableTorchDispatch": ("torch._C:_DisableTorchDispatch", "hides operators from subclasses"),
    "TorchDispatchMode": ("torch.utils._python_dispatch:TorchDispatchMode", "sees all operators"),
    "DisablePythonDispatcher": ("torch._C:_DisablePythonDispatcher", "sets that aside again"),
    "backward_id": ("torch._C:_current_graph_task_id", "of the backward that runs here, or -1"),
    "disable_current_modes": ("torch.utils._python_dispatch:_disable_current_modes", "for a block"),
    "DisableTorchFunction": ("torch._C:DisableTorchFunction", "sets aside __torch_function__"),
    "is_profiling": ("torch.autograd:_profiler_enabled", "whether a torch profiler runs here"),
    "log_api_usage": ("torch._C:_log_api_usage_once", "a call in graphs that computes nothing"),
    "DisableAutocast": ("torch._C:_DisableAutocast", "sets aside autocast"),
    "is_any_autocast_enabled": ("torch._C:_is_any_autocast_enabled", "on whatever device"),
    "dynamo_counters": ("torch._dynamo.utils:counters", "how many graphs it has made"),
    "resolve_process_group": (
        "torch.distributed.distributed_c10d:_resolve_process_group",
        "the process group of a name that a functional collective has",
    ),
    "work_of_future": (
        "torch._C._distributed_c10d:_create_work_from_future",
        "what a collective in Python returns",
    ),
    "DTensorDraws": (
        "torch.distributed.tensor._random:OffsetBasedRNGTracker",
        "runs draws of DTensors, so that processes with the same shard draw the same",
    ),
    "enable_python_dispatcher": (
        "torch._dispatch.python:enable_python_dispatcher",
        "traces operators by their kernels in Python, as AOTAutograd does",
    ),
    # Decompositions and the rules of dtypes and layouts.
    "core_aten_decompositions": ("torch._decomp:core_aten_decompositions", "torch's own table"),
    "get_decompositions": ("torch._decomp:get_decompositions", "rows of torch's table"),
    "decomposition_table": ("torch._decomp:decomposition_table", "all that torch can take apart"),
    "upsample_compute_output_size": (
        "torch._decomp.decompositions:upsample_compute_output_size",
        "the size of a resampled image",
    ),
    "ELEMENTWISE_TYPE_PROMOTION_KIND": (
        "torch._prims_common:ELEMENTWISE_TYPE_PROMOTION_KIND",
        "torch's kinds of type promotion",
    ),
    "elementwise_dtypes": ("torch._prims_common:elementwise_dtypes", "type promotion"),
    "get_computation_dtype": ("torch._prims_common:get_computation_dtype", "what half computes in"),
    "dtype_abbrs": ("torch.utils._dtype_abbrs:dtype_abbrs", "names such as f32, as in graphs"),
    "invert_perm": ("torch._prims_common:invert_perm", "the inverse of a permutation"),
    "suggest_memory_format": ("torch._prims_common:suggest_memory_format", "channels last or not"),
    # Tensors without values.
    "FakeTensor": ("torch._subclasses.fake_tensor:FakeTensor", "a tensor without values"),
    "FakeTensorMode": ("torch._subclasses.fake_tensor:FakeTensorMode", "makes fake tensors"),
    "unset_fake_temporarily": (
        "torch._subclasses.fake_tensor:unset_fake_temporarily",
        "real tensors in a trace",
    ),
    "DataDependentOutputException": (
        "torch._subclasses.fake_tensor:DataDependentOutputException",
        "a trace asked for a value",
    ),
    "DynamicOutputShapeException": (
        "torch._subclasses.fake_tensor:DynamicOutputShapeException",
        "sizes depend on values",
    ),
    "UnsupportedOperatorException": (
        "torch._subclasses.fake_tensor:UnsupportedOperatorException",
        "an operator has no kernel for fake tensors",
    ),
    "UnsupportedFakeTensorException": (
        "torch._subclasses.fake_tensor:UnsupportedFakeTensorException",
        "fake tensors of a kind that torch lacks",
    ),
    "detect_fake_mode": ("torch._guards:detect_fake_mode", "the mode that made fake tensors"),
    "is_traceable_wrapper_subclass": (
        "torch.utils._python_dispatch:is_traceable_wrapper_subclass",
        "a tensor that AOTAutograd takes apart, as jagged ones",
    ),
    "in_function_transform": ("torch._C:_are_functorch_transforms_active", "whether vmap calls"),
    "pytree": ("torch.utils:_pytree", "tensors in lists, tuples and dicts"),
    "GraphModuleSerializer": (
        "torch._export.serde.serialize:GraphModuleSerializer",
        "the metadata of an exported program's nodes, as texts",
    ),
    "get_fake_args_kwargs": ("torch._inductor.fx_utils:get_fake_args_kwargs", "a node's values"),
    # Dynamo and AOTAutograd.
    "FrameAction": ("torch._C._dynamo.eval_frame:_FrameAction", "what Dynamo does with a frame"),
    "FrameExecStrategy": ("torch._C._dynamo.eval_frame:_FrameExecStrategy", "and with inner ones"),
    "set_code_exec_strategy": ("torch._C._dynamo.eval_frame:set_code_exec_strategy", "tells it"),
    "CompileContext": ("torch._guards:CompileContext", "the id of Dynamo's compilation"),
    "TracingContext": ("torch._guards:TracingContext", "AOTAutograd's metadata of a graph"),
    "aot_autograd": ("torch._dynamo.backends.common:aot_autograd", "makes ATen graphs"),
    "Unsupported": ("torch._dynamo.exc:Unsupported", "what Dynamo does not trace"),
    "default_partition": ("torch._functorch.partitioners:default_partition", "forward, backward"),
    "must_recompute": ("torch._functorch.partitioners:must_recompute", "a checkpointed node"),
    "OutputType": ("torch._functorch._aot_autograd.schemas:OutputType", "which results are views"),
    "keeps_graph": ("torch._C._autograd:_get_current_graph_task_keep_graph", "retain_graph=True"),
    "allow_in_graph": ("torch._dynamo:allow_in_graph", "a function that Dynamo does not enter"),
    "compile_lock": ("torch._dynamo.convert_frame:compile_lock", "Dynamo's, for all threads"),
    "InstructionTranslator": ("torch._dynamo.symbolic_convert:InstructionTranslator", "traces"),
    "effect_types": ("torch._higher_order_ops.effects:_EffectType", "kinds of order of effects"),
    "register_effectful_op": ("torch._higher_order_ops.effects:_register_effectful_op", "its op"),
    "dynamo_config": ("torch._dynamo:config", "Dynamo's switches"),
    "inductor_config": ("torch._inductor:config", "whether a draw that nobody reads is dead"),
    "BackendCompilerFailed": ("torch._dynamo.exc:BackendCompilerFailed", "how it tells errors"),
    "OptimizedModule": ("torch._dynamo.eval_frame:OptimizedModule", "a compiled module"),
    "maybe_mark_dynamic": ("torch._dynamo:maybe_mark_dynamic", "lets Dynamo leave a size dynamic"),
    "innermost_fn": ("torch._dynamo.eval_frame:innermost_fn", "what torch.compile was given"),
    "TensorifyScalarRestartAnalysis": (
        "torch._dynamo.exc:TensorifyScalarRestartAnalysis",
        "AOTAutograd asks Dynamo for another trace",
    ),
    "TensorifyState": ("torch._dynamo.symbolic_convert:TensorifyState", "what it asked for"),
    "preserve_version": (
        "torch.autograd:_unsafe_preserve_version_counter",
        "for a block: autograd does not count changes of a tensor",
    ),
    "recursive_wrap": ("torch.distributed.fsdp.wrap:_recursive_wrap", "wraps by a policy"),
    # The device that torch leaves to others, PrivateUse1, from Python.
    "DeviceGuard": ("torch._C._acc:DeviceGuard", "what torch asks for the current device"),
    "DeviceHooks": ("torch._C._acc:PrivateUse1Hooks", "what torch asks of such a device"),
    "DeviceType": ("torch._C._autograd:DeviceType", "torch's kinds of devices"),
    "register_device_guard": ("torch._C._acc:register_python_privateuseone_device_guard", "known"),
    "register_device_hooks": ("torch._C._acc:register_python_privateuseone_hook", "tells hooks"),
    "register_device_module": ("torch:_register_device_module", "makes torch.xla"),
    "device_name": ("torch._C:_get_privateuse1_backend_name", "the name that the device has"),
    "create_empty_tensor": ("torch._C._acc:create_empty_tensor", "one without memory"),
    # Memory.
    "to_dlpack": ("torch._C:_to_dlpack", "a capsule of any tensor, gradients or not"),
    "from_dlpack": ("torch._C:_from_dlpack", "a tensor of a capsule"),
}


def find(name: str) -> Any:
    """What torch has at the place of one of our names.

    Raises:
        ImportError: it is not there; the message says with which releases we work.
    """
    module, _, attribute = PLACES[name][0].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"torch {torch.__version__} has no {module}.{attribute} ({PLACES[name][1]}): "
            f"xla_dynamo works with {SUPPORTED}; install one of these, or adapt "
            "xla_dynamo/torch_private"
        ) from error
