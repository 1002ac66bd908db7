"""Every use of torch's private parts: names that torch may move, each with what we use it for.

Each name's place is a row of `PLACES`, looked up at its first use: importing this costs nothing.
A function here wraps each use of a private attribute of one of torch's objects.
`tests/test_torch_private.py` fails with a clear message when one of these moves.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

SUPPORTED = "torch 2.11 to 2.15"

# Our name: where it is in torch, and what it does for us.
PLACES: dict[str, tuple[str, str]] = {
    "OpOverload": ("torch._ops:OpOverload", "an operator of a graph"),
    "HigherOrderOperator": ("torch._ops:HigherOrderOperator", "an operator on graphs"),
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
    "TorchDispatchMode": ("torch.utils._python_dispatch:TorchDispatchMode", "sees all operators"),
    "DisablePythonDispatcher": ("torch._C:_DisablePythonDispatcher", "sets that aside again"),
    "backward_id": ("torch._C:_current_graph_task_id", "of the backward that runs here, or -1"),
    "disable_current_modes": ("torch.utils._python_dispatch:_disable_current_modes", "for a block"),
    "DisableTorchFunction": ("torch._C:DisableTorchFunction", "sets aside __torch_function__"),
    "log_api_usage": ("torch._C:_log_api_usage_once", "a call in graphs that computes nothing"),
    "DisableAutocast": ("torch._C:_DisableAutocast", "sets aside autocast"),
    "is_any_autocast_enabled": ("torch._C:_is_any_autocast_enabled", "on whatever device"),
    "resolve_process_group": (
        "torch.distributed.distributed_c10d:_resolve_process_group",
        "the process group of a name that a functional collective has",
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
    # Dynamo and AOTAutograd.
    "FrameAction": ("torch._C._dynamo.eval_frame:_FrameAction", "what Dynamo does with a frame"),
    "FrameExecStrategy": ("torch._C._dynamo.eval_frame:_FrameExecStrategy", "and with inner ones"),
    "set_code_exec_strategy": ("torch._C._dynamo.eval_frame:set_code_exec_strategy", "tells it"),
    "CompileContext": ("torch._guards:CompileContext", "the id of Dynamo's compilation"),
    "TracingContext": ("torch._guards:TracingContext", "AOTAutograd's metadata of a graph"),
    "aot_autograd": ("torch._dynamo.backends.common:aot_autograd", "makes ATen graphs"),
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
    "maybe_mark_dynamic": ("torch._dynamo:maybe_mark_dynamic", "lets Dynamo leave a size open"),
    "innermost_fn": ("torch._dynamo.eval_frame:innermost_fn", "what torch.compile was given"),
    "TensorifyScalarRestartAnalysis": (
        "torch._dynamo.exc:TensorifyScalarRestartAnalysis",
        "AOTAutograd asks Dynamo for another trace",
    ),
    "TensorifyState": ("torch._dynamo.symbolic_convert:TensorifyState", "what it asked for"),
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


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = PLACES[name][0].partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _moved(f"{module}.{attribute} ({PLACES[name][1]})") from error
    globals()[name] = found
    return found


def _moved(what: str) -> ImportError:
    return ImportError(
        f"torch {torch.__version__} has no {what}: xla_dynamo works with {SUPPORTED}; install one "
        "of these, or adapt xla_dynamo/torch_private.py"
    )


# Operators


def schema(op: Any) -> Any:
    """An overload's schema: its arguments and returns with their aliases, and `is_mutable`."""
    return op._schema


def forget_kernels(op: Any) -> None:
    """Make torch's Python dispatcher choose an overload's kernels anew, from `op.py_kernels`."""
    op._dispatch_cache.clear()


def call_kernel(op: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an overload's kernel in C++ for a dispatch key."""
    return op._op_dk(key, *args, **kwargs)


# Tensors


def storage_id(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage, which its views share; fake tensors have one, too."""
    return tensor.untyped_storage()._cdata


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows a tensor as a view of another."""
    return tensor._is_view()


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is one of autograd's zeros, which have no memory."""
    return tensor._is_zerotensor()


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Whether something is to run when a tensor's gradient is known."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)  # type: ignore[attr-defined]


def is_function_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for another inside a transform of torch.func, such as vmap."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # type: ignore[attr-defined]


def in_forward_mode() -> bool:
    """Whether a level of forward-mode automatic differentiation is entered."""
    return forward_ad._current_level >= 0


def is_conjugated_or_negated(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are not those in its memory."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


# What a trace depends on beside the graph


def in_a_mode() -> bool:
    """Whether a mode of torch's dispatcher, or of __torch_function__, is active."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())  # type: ignore[attr-defined]


# Functions of torch._C that give a switch, by which torch chooses operators or their results.
_SWITCHES = re.compile(
    r"_get_(\w+_)?(enabled|precision|benchmark|deterministic\w*|allow_\w+|preferred_backend|"
    r"sdp\w*|priority_order|cpu_capability|fill_uninitialized_memory|qengine|reduction)"
)
_PRECISIONS = [("generic", "all")]
_PRECISIONS += [(b, op) for b in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")]


def global_settings() -> list[str]:
    """The state of torch that decides what a graph is traced to, one text a switch."""
    names = [name for name in dir(torch._C) if _SWITCHES.fullmatch(name)]
    found = [f"{name}={getattr(torch._C, name)()!r}" for name in names]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        found += [f"{pair}={precision(*pair)}" for pair in _PRECISIONS]
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    found += [repr(modes), str(torch.get_default_dtype()), str(torch.get_default_device())]
    for device in ("cpu", "cuda"):
        found.append(f"{torch.is_autocast_enabled(device)} {torch.get_autocast_dtype(device)}")
    return found


def functorch_settings() -> str:
    """AOTAutograd's switches, as a text."""
    config = importlib.import_module("torch._functorch.config")
    return repr(sorted(config.get_serializable_config_copy().items()))


def library_kernels() -> list[str]:
    """The names of the kernels that somebody has given torch's operators and a trace may run."""
    kernels = importlib.import_module("torch.library")._impls
    # Torch's own are of these: for other devices, and rules of vmap from its first use on.
    others = ("/Meta", "/CUDA", "/MPS", "/XPU", "PrivateUse1", "/FuncTorchBatched")
    return sorted(k for k in kernels if k.startswith("aten/") and not k.endswith(others))


_PUBLIC = (
    "torch",
    "torch.nn.functional",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._fft",
    "torch._C._special",
    "operator",
)


def public_name(function: Callable[..., Any]) -> str | None:
    """The name of a function that torch, or Python's operators, have; None for any other."""
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or "torch"
    if not module.startswith(("torch", "_operator")):
        return None
    for place in _PUBLIC:
        owner: Any = torch._C if place.startswith("torch._C") else sys.modules.get(place)
        if place.startswith("torch._C"):
            owner = getattr(owner, place.rpartition(".")[2], None)
        if owner is not None and getattr(owner, name, None) is function:
            return f"{place}.{name}"
    return None


# Compiled functions


def mark_boxed(call: Callable[..., Any]) -> None:
    """Tell AOTAutograd that a function takes its arguments in one list, which it may empty."""
    call._boxed_call = True  # type: ignore[attr-defined]


def leave_to_python(function: Callable[..., Any]) -> None:
    """Let Dynamo trace neither a function nor what it calls, at no cost to a call.

    `torch.compiler.disable` would cost each call a microsecond.
    """
    this: Any = sys.modules[__name__]
    skip = this.FrameAction.SKIP
    this.set_code_exec_strategy(function.__code__, this.FrameExecStrategy(skip, skip))


def uncompiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `torch.compile` made `fn` of, or `fn` itself."""
    this: Any = sys.modules[__name__]
    if isinstance(fn, this.OptimizedModule):
        fn = fn._orig_mod
    if isinstance(fn, torch.nn.Module) and fn._compiled_call_impl is not None:  # module.compile()
        return fn._call_impl
    return this.innermost_fn(fn)


def current_region() -> int | None:
    """The `torch.compile(isolate_recompiles=True)` that runs in this thread; None before 2.13."""
    get = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_isolate_recompiles_id", None)
    return get() if get else None


def function_of(node: Any) -> Any:
    """The class that a node of autograd's graph runs, where it is AOTAutograd's; else None."""
    function = getattr(node, "_forward_cls", None)
    return function if hasattr(function, "_backward_impl") else None


def region_of(compiled: Any) -> int | None:
    """The region of what `torch.compile` returned."""
    context = getattr(compiled, "dynamo_ctx", compiled)  # of a module
    return getattr(context, "_isolate_recompiles_id", None)


def sizes_seen_to_vary(shape_env: Any) -> set[Any]:
    """The symbols that Dynamo has met at several sizes, or was told of by `mark_dynamic`.

    The others are open since `dynamic=True` opens all. Known while Dynamo compiles, else empty.
    """
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    found = set()
    for tracked in getattr(shape_env, "tracked_fakes", None) or ():
        how = getattr(tracked.symbolic_context, "dynamic_sizes", ())
        sizes = tracked.fake.shape if how else ()
        found |= {
            size.node.expr
            for size, dynamic in zip(sizes, how, strict=True)
            if isinstance(size, torch.SymInt) and dynamic is DimDynamic.DYNAMIC
        }
    return found


def is_tracing_here() -> bool:
    """Whether this thread traces; what `is_compiling()` says of AOTAutograd holds for all threads.

    Dynamo traces the call of this function, too.
    """
    compiling = bool(torch.compiler.is_compiling())
    return compiling and (torch.compiler.is_dynamo_compiling() or in_a_mode())


def set_mkldnn(enabled: bool) -> bool:
    """Set whether torch uses oneDNN, and return whether it did.

    `torch.backends.mkldnn.flags` sets other things too, and warns.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    return before


# Optimizers


def step_hooks(optimizer: torch.optim.Optimizer) -> list[Mapping[int, Callable[..., Any]]]:
    """The hooks before and after an optimizer's step, its own and those of all optimizers."""
    everybodys = sys.modules[torch.optim.Optimizer.__module__]  # torch.optim deletes its name
    return [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        everybodys._global_optimizer_pre_hooks,
        everybodys._global_optimizer_post_hooks,
    ]


def init_group(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """The function that makes the state of a parameter group: takes it, and lists to be filled."""
    return optimizer._init_group  # type: ignore[attr-defined]


def mark_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Tell learning-rate schedulers that the optimizer has made a step."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def scaler_tensors(
    scaler: torch.amp.GradScaler, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """A scaler's own scale (f32) and count of steps without overflow (i32), 0-d each."""
    if scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(device)
    return scaler._scale, scaler._growth_tracker  # type: ignore[return-value]
