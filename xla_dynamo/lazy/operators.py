"""The kernels of the 'xla' device: for each ATen operator, a Python function that notes the call.

Views are made by torch's kernels for tensors without memory, which make true aliases; some
operators move tensors between devices or ask for numbers (`transfers`); all others are records.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.lazy import contents
from xla_dynamo.lazy.contents import View, as_meta, cell_of, geometry_of
from xla_dynamo.lazy.execution import tensors_behind
from xla_dynamo.lazy.records import record
from xla_dynamo.lazy.signatures import Signature, signature_of
from xla_dynamo.lazy.transfers import SPECIAL, to_device
from xla_dynamo.runtime import metrics

aten = torch.ops.aten
# Torch's own kernels do: they make an alias, which must not become an object of Python's before
# torch makes a parameter of it.
_LEFT_TO_TORCH = frozenset({"aten::detach", "aten::alias"})


def register_kernels(library: torch.library.Library) -> None:
    """Give every ATen operator that is not made of others a kernel for the device."""
    composite = "CompositeImplicitAutograd"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and name not in _LEFT_TO_TORCH and not has(name, composite):
            library.impl(name.removeprefix("aten::"), _kernel(name), "PrivateUse1")


def _kernel(name: str) -> Callable[..., Any]:
    run: Callable[..., Any] | None = None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal run
        if run is None:  # most are never called
            run = _kernel_of(_overload(name))
        return run(*args, **kwargs)

    return kernel


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _kernel_of(op: torch._ops.OpOverload) -> Callable[..., Any]:
    signature = signature_of(op)
    if op in SPECIAL:
        return functools.partial(SPECIAL[op], signature)
    if signature.is_view:
        return functools.partial(_view, signature)
    if signature.changes_sizes:
        return functools.partial(_change_sizes, signature)
    return functools.partial(run, signature)


def run(signature: Signature, *args: Any, **kwargs: Any) -> Any:
    """Note a call, or run it at once where its results must be known."""
    generator = signature.takes_generator and signature.argument("generator", args, kwargs)
    return record(signature, args, kwargs, by_value)


def _view(signature: Signature, *args: Any, **kwargs: Any) -> Any:
    result = as_meta(signature.op, args, kwargs)
    base = args[0]
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
    return args[0]


def by_value(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator in torch, on computed values: its results depend on them.

    Raises:
        UnsupportedOperator: it writes into its arguments.
    """
    metrics.increment(signature.name)
    if signature.written:
        raise UnsupportedOperator(
            f"{signature.op} on the 'xla' device: what it writes depends on values; call it on "
            ".cpu() tensors"
        )
    found: list[torch.Tensor] = []

    def collect(a: Any) -> Any:
        if isinstance(a, torch.Tensor) and a.device.type == "xla":
            found.append(a)
            return a
        return [collect(x) for x in a] if isinstance(a, list | tuple) else a

    collect([*args, *kwargs.values()])
    with tensors_behind(found) as tensors:
        known = {id(t): real for t, real in zip(found, tensors, strict=True)}
        device = tensors[0].device if tensors else torch.device("cpu")

        def real(a: Any) -> Any:
            if isinstance(a, torch.Tensor):
                return known.get(id(a), a)
            if isinstance(a, list | tuple):
                return [real(x) for x in a]
            return device if isinstance(a, torch.device) else a

        result = signature.op(*map(real, args), **{k: real(a) for k, a in kwargs.items()})
        return _returned(result)


def _returned(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return to_device(result)
    if isinstance(result, tuple | list):
        return type(result)(map(_returned, result))
    return result


__all__ = ["by_value", "contents", "register_kernels", "run"]
