"""The collectives of a graph and their gradients: `torch.ops.xla.all_reduce` and others.

Groups are indices of devices in the mesh, inside a manual region, and ranks of processes elsewhere:
one group of `group_size` after another. A gradient is the one of the whole computation, in which
the result of every device or process may count.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import ShardingError

Tensor: TypeAlias = torch.Tensor
# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
COLLECTIVES: list[str] = []  # their names
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


def _operator(
    schema: str, fake: Callable[..., Tensor], gradient: Callable[..., Any], keep: Callable[..., Any]
) -> None:
    name = schema.partition("(")[0]
    COLLECTIVES.append(name)

    def only_compiled(x: Tensor, *_: Any) -> Tensor:
        raise ShardingError(
            f"{name} on a tensor of shape {tuple(x.shape)} in eager code: collectives are for "
            "manual regions (spmd.shard_map), which run compiled, and among processes for tensors "
            "of the device 'xla', and inside torch.compile"
        )

    _library.define(f"{schema} -> Tensor", tags=_TAGS)
    torch.library.impl(f"xla::{name}", "CompositeExplicitAutograd", only_compiled, lib=_library)
    torch.library.register_fake(f"xla::{name}", fake, lib=_library)
    torch.library.register_autograd(f"xla::{name}", gradient, setup_context=keep, lib=_library)


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.args = inputs


def _with_dim(x: Tensor, dim: int, size: Any) -> list[Any]:
    shape = list(x.shape)
    shape[dim] = size
    return shape


def _part(size: Any, count: int) -> Any:
    """The size of a part; rounded up, so that the lowering sees and refuses what leaves a rest."""
    return -(-size // count)


# --- reductions --------------------------------------------------------------------------------


def _like(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _keep_reduction(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.reduce_op, *ctx.args = inputs
    if ctx.reduce_op in ("min", "max"):
        ctx.save_for_backward(x, output)
    elif ctx.reduce_op == "product":
        ctx.save_for_backward(x)


def _gradient_of_all_reduce(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ops, (groups, size) = torch.ops.xla, ctx.args
    if ctx.reduce_op in ("sum", "avg"):
        return ops.all_reduce(gradient, ctx.reduce_op, groups, size), None, None, None
    total = ops.all_reduce(gradient, "sum", groups, size)
    x, *result = ctx.saved_tensors
    factor = _factor(x, result[0] if result else None, groups, size, ctx.reduce_op)
    return total * factor, None, None, None


def _factor(
    x: Tensor, result: Tensor | None, groups: Sequence[int], size: int, reduce_op: str
) -> Tensor:
    """The derivative of a reduction's result by each device's element, conjugated.

    Of "min" and "max" those that have the result share it. Of "product" it is that of the others.
    """
    ops = torch.ops.xla
    if result is not None:
        holds = (x == result).to(x.dtype)
        return holds / ops.all_reduce(holds, "sum", groups, size)
    each = ops.all_gather(x.unsqueeze(0), 0, groups, size)
    one = torch.ones_like(each[:1])
    before = torch.cat([one, each[:-1]]).cumprod(0)
    after = torch.cat([each[1:], one]).flip(0).cumprod(0).flip(0)
    # All have the whole table: each takes its own row from the first device of its group.
    return ops.all_to_all(before * after, 0, 0, groups, size)[0].conj()


def _scattered(x: Tensor, reduce_op: str, dim: int, groups: Sequence[int], size: int) -> Tensor:
    return x.new_empty(_with_dim(x, dim, _part(x.shape[dim], size)))


def _gradient_of_reduce_scatter(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ops, (dim, groups, size) = torch.ops.xla, ctx.args
    whole = ops.all_gather(gradient, dim, groups, size)
    if ctx.reduce_op == "avg":
        whole = whole / size
    elif ctx.reduce_op != "sum":
        x, *result = ctx.saved_tensors
        results = [ops.all_gather(r, dim, groups, size) for r in result]
        whole = whole * _factor(x, results[0] if results else None, groups, size, ctx.reduce_op)
    return whole, None, None, None, None


_operator(
    "all_reduce(Tensor x, str reduce_op, int[] groups, int group_size)",
    _like,
    _gradient_of_all_reduce,
    _keep_reduction,
)
_operator(
    "reduce_scatter(Tensor x, str reduce_op, int dim, int[] groups, int group_size)",
    _scattered,
    _gradient_of_reduce_scatter,
    _keep_reduction,
)


# --- movements ---------------------------------------------------------------------------------


def _gathered(x: Tensor, dim: int, groups: Sequence[int], size: int) -> Tensor:
    return x.new_empty(_with_dim(x, dim, x.shape[dim] * size))


def _gradient_of_all_gather(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return torch.ops.xla.reduce_scatter(gradient, "sum", *ctx.args), None, None, None


def _exchanged(x: Tensor, split: int, concat: int, groups: Sequence[int], size: int) -> Tensor:
    shape = _with_dim(x, split, _part(x.shape[split], size))
    shape[concat] = shape[concat] * size
    return x.new_empty(shape)


def _gradient_of_all_to_all(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    split, concat, *group = ctx.args
    return torch.ops.xla.all_to_all(gradient, concat, split, *group), None, None, None, None


def _gradient_of_broadcast(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    source, groups, size = ctx.args
    total = torch.ops.xla.all_reduce(gradient, "sum", groups, size)
    # The others get zeros.
    pairs = [index for index in groups[source::size] for _ in range(2)]
    return torch.ops.xla.collective_permute(total, pairs), None, None, None


def _gradient_of_permute(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (pairs,) = ctx.args
    back = [index for i in range(0, len(pairs), 2) for index in (pairs[i + 1], pairs[i])]
    return torch.ops.xla.collective_permute(gradient, back), None


_operator(
    "all_gather(Tensor x, int dim, int[] groups, int group_size)",
    _gathered,
    _gradient_of_all_gather,
    _keep_arguments,
)
_operator(
    "all_to_all(Tensor x, int split_dim, int concat_dim, int[] groups, int group_size)",
    _exchanged,
    _gradient_of_all_to_all,
    _keep_arguments,
)
_operator(
    "collective_broadcast(Tensor x, int src, int[] groups, int group_size)",
    _like,
    _gradient_of_broadcast,
    _keep_arguments,
)
_operator("collective_permute(Tensor x, int[] pairs)", _like, _gradient_of_permute, _keep_arguments)
