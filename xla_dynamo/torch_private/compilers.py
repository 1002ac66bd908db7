"""Private parts of Dynamo and AOTAutograd, of what they are given and what they make."""

from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.torch_private.places import find
from xla_dynamo.torch_private.settings import in_a_mode


def mark_boxed(call: Callable[..., Any]) -> None:
    """Tell AOTAutograd that a function takes its arguments in one list, which it may empty."""
    call._boxed_call = True  # type: ignore[attr-defined]


def leave_to_python(function: Callable[..., Any]) -> None:
    """Let Dynamo trace neither a function nor what it calls, at no cost to a call.

    `torch.compiler.disable` would cost each call a microsecond.
    """
    skip = find("FrameAction").SKIP
    strategy = find("FrameExecStrategy")(skip, skip)
    find("set_code_exec_strategy")(function.__code__, strategy)


def uncompiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `torch.compile` made `fn` of, or `fn` itself."""
    if isinstance(fn, find("OptimizedModule")):
        fn = fn._orig_mod
    if isinstance(fn, torch.nn.Module) and fn._compiled_call_impl is not None:  # module.compile()
        return fn._call_impl
    return find("innermost_fn")(fn)


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

    The others are dynamic since `dynamic=True` makes all dynamic. Known while Dynamo compiles,
    else empty.
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


def new_symbol(mode: Any, value: int, low: int, high: int) -> torch.SymInt:
    """A new dynamic size in a fake tensor mode, with a value to trace at and a range."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    fake = mode.from_tensor(torch.empty(value, device="meta"), symbolic_context=context)
    (size,) = fake.shape
    assert isinstance(size, torch.SymInt)
    known = mode.shape_env.var_to_range
    known[size.node.expr] = type(known[size.node.expr])(low, high)
    return size


def is_tracing_here() -> bool:
    """Whether this thread traces; what `is_compiling()` says of AOTAutograd holds for all threads.

    Dynamo traces the call of this function, too.
    """
    compiling = bool(torch.compiler.is_compiling())
    return compiling and (torch.compiler.is_dynamo_compiling() or in_a_mode())


def source_of(placeholder: torch.fx.Node) -> Any:
    """What an input of Dynamo's graph is in the user's program; None where Dynamo says nothing."""
    return getattr(placeholder, "_dynamo_source", None)


def source_name(placeholder: torch.fx.Node) -> str:
    """The name of that, as "L['x']"; the node's own where Dynamo says nothing."""
    name = getattr(source_of(placeholder), "name", None)
    return name if isinstance(name, str) and name else placeholder.name
