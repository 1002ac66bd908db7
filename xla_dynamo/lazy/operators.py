"""The kernels of the 'xla' device: for each ATen operator, a function that records the call.

Torch's kernels for tensors without memory make the views, as true aliases. Some operators move
tensors between devices or ask for numbers (`transfers`). All others are recorded.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.lazy import growth, modes
from xla_dynamo.lazy.clean_state import clean_state
from xla_dynamo.lazy.contents import View, as_meta, cell_of, geometry_of
from xla_dynamo.lazy.device_module import checked_index
from xla_dynamo.lazy.execution import compute, tensors_behind
from xla_dynamo.lazy.fused_optimizers import FUSED
from xla_dynamo.lazy.indexing import INDEXING, with_boolean_masks
from xla_dynamo.lazy.lists import one_at_a_time, writes_lists
from xla_dynamo.lazy.manual_regions import is_shard
from xla_dynamo.lazy.memory import fallback_device, give_dtype
from xla_dynamo.lazy.records import record
from xla_dynamo.lazy.refusals import refuse_beyond_memory
from xla_dynamo.lazy.signatures import Signature, signature_of
from xla_dynamo.lazy.synchronised_norms import SYNCHRONISED
from xla_dynamo.lazy.transfers import SPECIAL, to_device
from xla_dynamo.runtime import metrics
from xla_dynamo.spmd.collective_operators import COLLECTIVES
from xla_dynamo.spmd.operators import MARK
from xla_dynamo.torch_private import (
    OpOverload,
    all_operator_names,
    has_kernel,
    leave_to_python,
    storage_id,
)

aten = torch.ops.aten
# Torch's own kernels serve here: they make an alias, which must not become a Python object before
# torch makes a parameter of it.
_OF_ROOMS_ABOVE = (
    "after",
    "call_jax",
    "full_to_shard",
    "grouped_outer_product",
    "grouped_product",
    "mark_tensor",
    "place_to_device",
    "place_to_host",
    "scan",
    "shard_to_full",
    "stablehlo_custom_call",
    "user_computation",
    "write_mlir_debuginfo",
)
_LEFT_TO_TORCH = frozenset({"aten::detach", "aten::alias"})
_OF_EAGER_MODE = {"CompileTime": "EagerOpCompileTime", "ExecuteTime": "EagerOpExecuteTime"}


def register_kernels(library: torch.library.Library) -> None:
    """Give every ATen operator that is not made of others a kernel for the device."""
    composite = "CompositeImplicitAutograd"
    for name in all_operator_names():
        ours = name.startswith("aten::") and name not in _LEFT_TO_TORCH
        if ours and not has_kernel(name, composite):
            library.impl(name.removeprefix("aten::"), _kernel(name), "PrivateUse1")


def register_own(library: torch.library.Library) -> None:
    """Give this package's operators that compiled code knows kernels that record them."""
    library.impl("mark_sharding", _kernel_of(MARK), "PrivateUse1")
    for name in COLLECTIVES:
        library.impl(name, _kernel(f"xla::{name}"), "PrivateUse1")
    # Whoever calls them has imported the rooms that make them, which this one does not know.
    for name in _OF_ROOMS_ABOVE:
        library.impl(name, _kernel(f"xla::{name}"), "PrivateUse1")


def _kernel(name: str) -> Callable[..., Any]:
    run: Callable[..., Any] | None = None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal run
        if run is None:  # most are never called
            run = _kernel_of(_overload(name))
        return run(*args, **kwargs)

    leave_to_python(kernel)  # all kernels have one code
    return kernel


def _overload(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _kernel_of(op: OpOverload) -> Callable[..., Any]:
    signature = signature_of(op)
    kernel = _unchecked_kernel_of(op, signature)
    return _checking_the_device(kernel, signature) if "device" in signature.positions else kernel


def _unchecked_kernel_of(op: OpOverload, signature: Signature) -> Callable[..., Any]:
    if writes_lists(signature):
        return one_at_a_time(signature, _kernel_of_whole_lists(op, signature))
    return _kernel_of_whole_lists(op, signature)


def _kernel_of_whole_lists(op: OpOverload, signature: Signature) -> Callable[..., Any]:
    special = SPECIAL.get(op) or FUSED.get(op) or SYNCHRONISED.get(op)
    if special is not None:
        return functools.partial(_special, special, signature)
    if op in INDEXING:
        return functools.partial(_index, signature)
    if signature.is_view:
        return functools.partial(_view, signature)
    if signature.changes_sizes:
        return functools.partial(_change_sizes, signature)
    return functools.partial(run, signature)


def _checking_the_device(kernel: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """Look where an operator is told that its result should be: 'xla:0', or a device of torch's."""
    is_special = signature.op in SPECIAL

    def checked(*args: Any, **kwargs: Any) -> Any:
        device = signature.argument("device", args, kwargs)
        if device is not None and device.type == "xla":
            checked_index(device)
        elif device is not None and not is_special:  # as empty_like, new_zeros
            return signature.op(*(_like(a, device) for a in args), **kwargs)
        return kernel(*args, **kwargs)

    return checked


def _like(value: Any, device: torch.device) -> Any:
    """A tensor of another device, of any elements, for one of the 'xla' device."""
    if not isinstance(value, torch.Tensor) or value.device.type != "xla":
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)


def run(signature: Signature, *args: Any, **kwargs: Any) -> Any:
    """Note a call, or run it at once where its results must be known, or a generator draws."""
    if signature.takes_generator and signature.argument("generator", args, kwargs) is not None:
        return by_value(signature, args, kwargs)
    result = record(signature, args, kwargs, by_value)
    _after(result)
    return result


def _index(signature: Signature, *args: Any, **kwargs: Any) -> Any:
    return run(signature, *with_boolean_masks(args), **kwargs)


def _special(function: Callable[..., Any], signature: Signature, *args: Any, **kwargs: Any) -> Any:
    result = function(signature, *args, **kwargs)
    _after(result)
    return result


def _after(result: Any) -> None:
    """Compute what was recorded, in eager mode; and a stream that nobody ends."""
    if modes.state.is_eager and modes.runs_at_once():
        made = [t for t in _tensors([result]) if t.device.type == "xla"]
        with metrics.renamed(_OF_EAGER_MODE):
            values = [cell_of(t).value for t in made]
            compute([v for v in values if not is_shard(v)], "eager_mode()")
    elif growth.is_due():
        compute(cause="a stream of operators without sync()")


def _view(signature: Signature, *args: Any, **kwargs: Any) -> Any:
    metrics.count_operator(signature.counted)
    result = as_meta(signature.op, args, kwargs)
    base = args[0]
    if signature.op is aten.as_strided.default:
        refuse_beyond_memory(result)
    cell = cell_of(base)
    views = cell.views
    geometry = geometry_of(base)
    parent = views.get(geometry)
    if parent is None and geometry != cell.value.geometry:
        return result  # nobody knows how the base was made
    several = isinstance(result, list | tuple)
    for index, one in enumerate(result if several else (result,)):
        view = View(signature.op, args[1:], kwargs, index if several else None, parent)
        cell.note_view(geometry_of(one), view)
    return result


def _change_sizes(signature: Signature, *args: Any, **kwargs: Any) -> Any:
    as_meta(signature.op, args, kwargs)
    give_dtype(args[0])
    return args[0]


def by_value(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator in torch, on computed values: its results depend on them.

    What it writes, it writes into copies, which are recorded as written afterwards.
    """
    metrics.increment(signature.name)
    every = _tensors([*args, *kwargs.values()])
    found = [t for t in every if t.device.type == "xla"]
    written = _tensors([signature.argument(name, args, kwargs) for _, name in signature.written])
    with tensors_behind(found) as tensors, clean_state():
        real = {id(t): shown for t, shown in zip(found, tensors, strict=True)}
        real |= {id(t): real[id(t)].clone() for t in written}
        known = {storage_id(t) for t in real.values()}
        device = fallback_device()

        def put(a: Any) -> Any:
            if isinstance(a, list | tuple):
                return [put(x) for x in a]
            return device if isinstance(a, torch.device) else real.get(id(a), a)

        result = signature.op(*map(put, args), **{k: put(a) for k, a in kwargs.items()})
        moved = _to_device(result, known)
    for tensor in written:
        new = real[id(tensor)]
        tensor.resize_(new.size()).copy_(to_device(new))
    if not signature.written:
        return moved
    several = isinstance(moved, tuple)
    names = signature.results
    returned = [
        signature.argument(name, args, kwargs) if name else one
        for one, name in zip(moved if several else [moved], names, strict=True)
    ]
    return tuple(returned) if several else returned[0]


def _tensors(arguments: Any) -> list[torch.Tensor]:
    """The tensors among arguments and in their lists."""
    if isinstance(arguments, list | tuple):
        return [t for a in arguments for t in _tensors(a)]
    return [arguments] if isinstance(arguments, torch.Tensor) else []


def _to_device(result: Any, known: set[int]) -> Any:
    """What torch returned as tensors of the device; copies, where they share known memory."""
    if isinstance(result, torch.Tensor):
        if storage_id(result) in known or result.storage_offset():
            result = result.clone()
        known.add(storage_id(result))
        return to_device(result)
    if isinstance(result, tuple | list):
        return type(result)(_to_device(r, known) for r in result)
    return result
