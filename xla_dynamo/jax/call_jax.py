"""Functions of JAX as an operator of torch's: `torch.ops.xla.call_jax`.

Its gradient and its rule for batches are the same operator with another function of JAX's, so they
have gradients and batches in turn. In a compiled graph the function's StableHLO is inlined.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch.autograd.forward_ad import unpack_dual

from xla_dynamo.jax.arrays import on_jax, torch_dtype_of
from xla_dynamo.jax.flat_functions import find, keep, register
from xla_dynamo.lowerings.builders.dtypes import dtype_name
from xla_dynamo.lowerings.builders.from_jax import call_jax as inline
from xla_dynamo.lowerings.table import Context, lowers
from xla_dynamo.torch_private import in_forward_mode, in_function_transform, is_tracing_here

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "call_jax(Tensor[] operands, str function) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,)
)


def call_jax(fn: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """Call a function of JAX on tensors, in eager code or inside a compiled function.

        def smooth(x, width):
            return jnp.convolve(x, jnp.ones(5) / 5, mode="same") * width

        y = xla_dynamo.jax.call_jax(smooth, x, width)

    It has gradients, of any order, by `jax.vjp`, and works under `torch.func.vmap`. Under
    `torch.compile(backend="openxla")` it is part of the program.

    Args:
        fn: a function of JAX that can be traced: of arrays, to arrays in tuples, lists and dicts.
            Pass the same object at each call, not a lambda made anew: it is traced once for each
            set of shapes. Inside a compiled function it is kept as long as the process lives.
        tensors: of any dtype that JAX has. They arrive as they are: int64 is int64.

    Returns:
        What fn returns, with tensors for arrays.

    Raises:
        TypeError: an argument is not a tensor, or fn returns something that is no array, or has
            a dtype that torch lacks; fn has no hash, as a dataclass that is not frozen.
        NotImplementedError: a tensor has a tangent of forward-mode differentiation.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"call_jax takes tensors, not {type(tensor).__name__}: give other arguments to the "
                "function by functools.partial, or make a tensor of a number"
            )
    return call_by_key(_name_of(fn), *tensors)


def call_by_key(function: str, *tensors: torch.Tensor) -> Any:
    """Call the function of JAX that has a key, which `flat_functions.register` gives."""
    results = _call(function, *tensors)
    # Now the function has been traced.
    form = _form_of(function, tuple((str(t.dtype), tuple(map(int, t.shape))) for t in tensors))
    return _restored(form, results)


@torch.compiler.assume_constant_result
def _name_of(fn: Callable[..., Any]) -> str:
    return register(fn).key


@torch.compiler.assume_constant_result
def _form_of(function: str, kinds: Sequence[tuple[str, tuple[int, ...]]]) -> Any:
    """The structure of the results, as nested tuples (see `_plain`)."""
    names = [(dtype.removeprefix("torch."), shape) for dtype, shape in kinds]
    tree = find(function).tree_of_results(names)
    return _plain(jax.tree_util.tree_unflatten(tree, range(tree.num_leaves)))


def _plain(form: Any) -> tuple[Any, ...]:
    """A structure of numbers as tuples, which Dynamo knows best: a kind, and its parts."""
    if isinstance(form, int):
        return "leaf", form
    if form is None:
        return ("none",)
    if isinstance(form, dict):
        return "dict", tuple(form), tuple(map(_plain, form.values()))
    if type(form) in (list, tuple):
        return type(form).__name__, tuple(map(_plain, form))
    raise TypeError(f"{type(form).__name__} among the results: return tuples, lists and dicts")


def _restored(form: tuple[Any, ...], results: Sequence[torch.Tensor]) -> Any:
    kind = form[0]
    if kind == "none":
        return None
    if kind == "leaf":
        return results[form[1]]
    parts = [_restored(part, results) for part in form[-1]]
    if kind == "dict":
        return dict(zip(form[1], parts, strict=True))
    return parts if kind == "list" else tuple(parts)


# --- the operator --------------------------------------------------------------------------------


def _run(operands: Sequence[torch.Tensor], function: str) -> list[torch.Tensor]:
    """Eager torch: XLA runs the function alone."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        arrays = list(map(on_jax, operands))
        results = find(function).jitted(*arrays)
        # Until then they may read the operands, which torch may change.
        jax.block_until_ready(results)
    # An argument that is returned, and a result that is returned twice, are the same memory.
    taken = {x.unsafe_buffer_pointer() for x in arrays}
    tensors = []
    for tensor in map(torch.from_dlpack, results):
        tensors.append(tensor.clone() if tensor.data_ptr() in taken else tensor)
        taken.add(tensor.data_ptr())
    return tensors


def _fakes(operands: Sequence[torch.Tensor], function: str) -> list[torch.Tensor]:
    types = tuple((tuple(int(n) for n in t.shape), dtype_name(t.dtype)) for t in operands)
    device = operands[0].device if operands else None
    return [
        torch.empty(x.shape, dtype=torch_dtype_of(x), device=device)
        for x in keep(function).types_of_results(types)
    ]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Sequence[torch.Tensor]) -> None:
    operands, function = inputs
    ctx.function = find(function)
    ctx.save_for_backward(*operands)
    ctx.differentiable = [i for i, x in enumerate(output) if _has_gradient(x)]


def _has_gradient(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _gradients(ctx: Any, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    operands = ctx.saved_tensors
    wrt = tuple(i for i, x in enumerate(operands) if _has_gradient(x))
    found: list[torch.Tensor | None] = [None] * len(operands)
    if wrt and ctx.differentiable:
        # JAX's cotangents of complex numbers are the conjugates of torch's.
        given = [gradients[i].conj_physical() for i in ctx.differentiable]
        pull = ctx.function.vjp(wrt, len(operands))
        for i, x in zip(wrt, _call(pull.key, *operands, *given), strict=True):
            found[i] = x.conj_physical()
    return found


def _call(function: str, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
    if not is_tracing_here():
        # Without gradients only vmap and functionalization are left, which take the operator.
        if in_function_transform() and torch.is_grad_enabled():
            return _Differentiable.apply(function, *operands)
        if in_forward_mode() and any(unpack_dual(x).tangent is not None for x in operands):
            raise NotImplementedError(
                "call_jax has no derivatives in forward mode: take jax.jvp of the function, and "
                "give that to call_jax with the tangents"
            )
    return torch.ops.xla.call_jax(list(operands), function)


class _Differentiable(torch.autograd.Function):
    """The operator under the transforms of torch.func, which do not take `register_autograd`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: str, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the operator."""
        return tuple(torch.ops.xla.call_jax(list(operands), function))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep the operands."""
        function, *operands = inputs
        _keep(ctx, (operands, function), output)
        ctx.mark_non_differentiable(*(x for x in output if not _has_gradient(x)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The gradients of the operands."""
        return None, *_gradients(ctx, gradients)


def _batched(
    info: Any, dims: Sequence[Any], operands: Sequence[torch.Tensor], function: str
) -> tuple[list[torch.Tensor], list[int]]:
    mapped = find(function).vmap(tuple(dims[0]))
    results = torch.ops.xla.call_jax(list(operands), mapped.key)
    return results, [0] * len(results)


_NAME = "xla::call_jax"
torch.library.impl(_NAME, "CompositeExplicitAutograd", _run, lib=_library)
torch.library.register_fake(_NAME, _fakes, lib=_library)
torch.library.register_autograd(
    _NAME, lambda ctx, given: (_gradients(ctx, given), None), setup_context=_keep, lib=_library
)
torch.library.register_vmap(_NAME, _batched, lib=_library)


@lowers("xla.call_jax.default")
def _inlined(ctx: Context, operands: Sequence[Any], function: str) -> tuple[Any, ...]:
    return tuple(inline(ctx, find(function), *operands))


__all__ = ["call_by_key", "call_jax"]
