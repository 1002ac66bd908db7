"""Compile for XLA and compare with eager torch: the words that the tests share."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.comparison import compare, copied
from xla_dynamo.backend import compile_torch_graph
from xla_dynamo.events import BuiltExecutable
from xla_dynamo.options import Options

# Tolerances of results that must be eager's to the last bit.
EXACT = {"rtol": 0, "atol": 0, "equal_nan": True}


def compiled(
    f: Callable[..., Any],
    *,
    fullgraph: bool = True,
    dynamic: bool | None = None,
    mode: str | None = None,
    **options: Any,
) -> Any:
    """Compile a function or module for our backend, as one graph; `options` are the backend's."""
    return torch.compile(
        f,
        backend="openxla",
        fullgraph=fullgraph,
        dynamic=dynamic,
        mode=mode,
        options=options or None,
    )


def compiled_anew(f: Callable[..., Any], **how: Any) -> Any:
    """Compile as `compiled` does, after Dynamo has forgotten all that it compiled before.

    Functions of one code object, as a lambda in a loop, otherwise share what Dynamo knows of it:
    sizes that have changed are dynamic from then on, and too many compilations are refused.
    """
    torch._dynamo.reset()
    return compiled(f, **how)


def compiled_whole(f: Callable[..., Any], **how: Any) -> Any:
    """Compile as `compiled` does, where an operator without a rule is an error."""
    return compiled(f, **{"fallback": "error", **how})


def watched(
    f: Callable[..., Any],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    **options: Any,
) -> tuple[Any, list[BuiltExecutable]]:
    """Compile a function; the list gets each executable that is built for it."""
    built: list[BuiltExecutable] = []

    def observe(event: Any) -> None:
        if isinstance(event, BuiltExecutable):
            built.append(event)

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_torch_graph(gm, inputs, Options.parse(options), observer=observe)

    return torch.compile(f, backend=backend, fullgraph=fullgraph, dynamic=dynamic), built


def leaf(*shape: int, **kwargs: Any) -> torch.Tensor:
    """Random numbers that require a gradient."""
    return torch.randn(*shape, **kwargs, requires_grad=True)


def assert_matches_eager(
    run: Callable[..., Any],
    *args: Any,
    eager: Callable[..., Any] | None = None,
    calls: int = 1,
    tangents: Sequence[torch.Tensor | None] | None = None,
    strides: bool = True,
    gradient_strides: bool = False,
    **tolerance: Any,
) -> None:
    """Call a compiled function, and on copies of the arguments the function it was compiled from.

    Results, what the call left in its arguments and, where an argument requires a gradient, the
    gradients must agree in structure, dtypes and values; results and arguments in strides, too.

    Args:
        run: what `torch.compile` returned.
        args: tensors, numbers, and lists or dictionaries of them; compiled code gets them as they
            are.
        eager: what to compare with instead, as a twin of a module that changes its buffers.
        calls: how often both are called; a call sees what the one before left in the arguments.
        tangents: the gradient of each result, None for no gradient; unless given, numbers that
            differ from element to element.
        strides: whether strides are compared.
        gradient_strides: whether strides of gradients are compared.
        tolerance: as for `torch.testing.assert_close`.
    """
    eager = original(run) if eager is None else eager
    theirs = pytree.tree_map_only(torch.Tensor, copied, args)
    for _ in range(calls):
        _assert_same_call(
            (run, args),
            (eager, theirs),
            tangents,
            strides=strides,
            gradient_strides=gradient_strides,
            **{"equal_nan": False, **tolerance},
        )


def assert_module_matches_eager(
    module: torch.nn.Module, *inputs: torch.Tensor, calls: int = 1, **how: Any
) -> None:
    """Compare some forwards and backwards of a compiled twin of a module with its own.

    Compared are results, gradients in inputs, those that the parameters collected, and buffers.
    """
    twin = copy.deepcopy(module)
    run = compiled(twin, **how)
    close = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": False}
    for _ in range(calls):
        _assert_same_call((run, inputs), (module, inputs), None, collect=True, **close)
    expected, actual = ([p.grad for p in m.parameters()] for m in (module, twin))
    compare(expected, actual, values=True, **close)
    compare(module.state_dict(), twin.state_dict(), values=True, equal_nan=False)


def original(run: Any) -> Callable[..., Any]:
    """The function or module that `torch.compile` was given."""
    return run._orig_mod if isinstance(run, torch.nn.Module) else run._torchdynamo_orig_callable


Call = tuple[Callable[..., Any], Sequence[Any]]


def _assert_same_call(
    ours: Call,
    eagers: Call,
    tangents: Sequence[torch.Tensor | None] | None,
    *,
    strides: bool = True,
    gradient_strides: bool = False,
    collect: bool = False,
    **tolerance: Any,
) -> None:
    """Compare one call with eager's; with `collect`, parameters collect their gradients, too."""
    found = []
    for f, args in (eagers, ours):
        args = pytree.tree_map_only(torch.Tensor, _leaf_of, args)
        leaves = [x for x in pytree.tree_leaves(args) if _requires_grad(x)]
        found.append((f(*args), args, leaves))
    expected, actual = (
        _detached((returned, pytree.tree_map(_requires_grad, returned), args))
        for returned, args, _ in found
    )
    compare(expected, actual, values=True, strides=strides, **tolerance)
    results = [y for y in pytree.tree_leaves(found[0][0]) if isinstance(y, torch.Tensor)]
    if tangents is None:
        tangents = [y.detach().cos() if y.requires_grad else None for y in results]
    expected, actual = (
        _gradients(returned, leaves, tangents, collect=collect) for returned, _, leaves in found
    )
    compare(expected, actual, values=True, strides=gradient_strides, **tolerance)


def _gradients(
    returned: Any,
    leaves: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
    *,
    collect: bool,
) -> list[torch.Tensor | None]:
    """The gradients in the leaves; None for each that no result with a tangent depends on."""
    results = [y for y in pytree.tree_leaves(returned) if isinstance(y, torch.Tensor)]
    pairs = [(y, t) for y, t in zip(results, tangents, strict=True) if t is not None]
    if not leaves or not pairs:
        return [None] * len(leaves)
    given, weights = zip(*pairs, strict=True)
    if collect:
        torch.autograd.backward(given, weights)
        return [x.grad for x in leaves]
    return list(torch.autograd.grad(given, leaves, weights, allow_unused=True))


def _leaf_of(x: torch.Tensor) -> torch.Tensor:
    """A leaf without a gradient yet, in the same memory; the tensor itself if it needs none."""
    return x.detach().requires_grad_() if x.requires_grad else x


def _requires_grad(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tree)
