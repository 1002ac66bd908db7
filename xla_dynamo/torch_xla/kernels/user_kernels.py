"""Kernels that scripts register for the dispatch key "XLA" are the lazy device's.

PyTorch/XLA's device has that key in torch. The lazy device has the one that torch keeps for further
devices. Programs that contain such an operator have what its kernel calls.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.lowerings.builders.build import dtype_of, is_value, shape_of
from xla_dynamo.lowerings.table import Context, find_rule, lowers
from xla_dynamo.torch_private import pytree

Kernel = Callable[..., Any]
_kernels: dict[str, Kernel] = {}  # by operator, as "namespace.operator.overload"


def _name_of(library: torch.library.Library, op: Any) -> str:
    """An operator's name, whatever way it is told to a library."""
    if not isinstance(op, str):
        return str(op)
    name = op if "::" in op else f"{library.ns}::{op}"
    name = name.replace("::", ".")
    return name if name.count(".") > 1 else f"{name}.default"


def _lower(name: str) -> None:
    """Let programs contain an operator as the operators that its kernel calls."""

    def rule(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((list(args), kwargs))
        places = [i for i, leaf in enumerate(leaves) if is_value(leaf)]
        fakes = pytree.tree_leaves((list(ctx.operands), kwargs), is_leaf=lambda x: x is None)
        like = next(x for x in fakes if isinstance(x, torch.Tensor))
        for i in places:
            if is_value(fakes[i]):  # a tensor by name
                fakes[i] = like.new_empty(shape_of(fakes[i]), dtype=dtype_of(fakes[i]))

        def run(*tensors: torch.Tensor) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            args, kwargs = pytree.tree_unflatten(filled, spec)
            return _kernels[name](*args, **kwargs)

        made = ctx.inline(run, [leaves[i] for i in places], [fakes[i] for i in places])
        return made[0] if len(made) == 1 else tuple(made)

    if find_rule(name) is None:
        lowers(name)(rule)


@functools.cache
def take_kernels_for_xla() -> None:
    """Give the lazy device the kernels that libraries register for "XLA" from now on."""
    known = torch.library.Library.impl

    @functools.wraps(known)
    def impl(self: Any, op_name: Any, fn: Kernel, dispatch_key: str = "", **options: Any) -> Any:
        if dispatch_key != "XLA":
            return known(self, op_name, fn, dispatch_key, **options)
        name = _name_of(self, op_name)
        _kernels[name] = fn
        _lower(name)
        return known(self, op_name, fn, "PrivateUse1", **options)

    torch.library.Library.impl = impl  # type: ignore[method-assign]


take_kernels_for_xla()
