"""The parts of `scan` as functions of trees: forward and backward of a row, and their loops."""

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import default_partition
from torch.fx.experimental.proxy_tensor import make_fx

from xla_dynamo.torch_private import FakeTensorMode, pytree
from xla_dynamo.torch_xla.forms.loop_operator import body_of, run_loop
from xla_dynamo.torch_xla.forms.scan import graphs_of, tree_flatten_none

Function = Callable[..., Any]


def value_and_grad_partitioned(
    fn: Function,
    init: Any,
    xs: Any,
    partition_fn: Function = default_partition,
    is_fn_pure: bool = True,
) -> tuple[Function, Function, Function]:
    """The forward and the backward of a function that is to be folded over rows.

    Args:
        fn: as for `scan`.
        init: as for `scan`; no value is read.
        xs: as for `scan`; no value is read.
        partition_fn: as for `scan`.
        is_fn_pure: as for `scan`.

    Returns:
        Three functions of trees, in which None stands for gradients that are not there:
        `forward(carry, x)` returns `carry, (y, partial_activations)`;
        `alias_input(partial_activations, xs)` returns the activations, a tuple that has rows of
        `xs` beside what the forward made;
        `backward(grad_carry, (grad_y, activations))` returns `grad_carry, grad_x`.
    """
    loop, of_carry, of_made = graphs_of(fn, init, xs, partition_fn, is_fn_pure, True)
    divided, counts = loop.divided, loop.counts
    inputs = divided.inputs
    rows = inputs[counts.carry :]
    # Of each activation, the number of the row that it is.
    aliases = [rows.index(n) if n in rows else None for n in divided.handed_over]
    of_init, of_xs = tree_flatten_none(init)[1], tree_flatten_none(xs)[1]

    def forward(carry: Any, x: Any) -> Any:
        made = divided.forward(*tree_flatten_none(carry)[0], *tree_flatten_none(x)[0])
        results, handed = made[: divided.results], made[divided.results :]
        own = tuple(one for one, alias in zip(handed, aliases, strict=True) if alias is None)
        return of_carry(results[: counts.carry]), (of_made(results[counts.carry :]), own)

    def alias_input(partial_activations: Any, xs: Any) -> tuple[torch.Tensor, ...]:
        own, given = iter(partial_activations), tree_flatten_none(xs)[0]
        return tuple(next(own) if alias is None else given[alias] for alias in aliases)

    def backward(carry: Any, x: Any) -> Any:
        gradient_of_y, activations = x
        every = [*pytree.tree_leaves(carry), *tree_flatten_none(gradient_of_y)[0]]
        given = [g for g, has in zip(every, divided.differentiable, strict=True) if has]
        assert divided.backward is not None
        made = divided.backward(*activations, *given)
        return of_init(made[: counts.carry]), of_xs(made[counts.carry :])

    return forward, alias_input, backward


def _loop(fn: Function, init: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """A loop of a function of trees, which is traced anew and has no gradient."""
    (carry, of_carry), (rows, of_rows) = tree_flatten_none(init), tree_flatten_none(xs)
    makers: list[Function] = []

    def step(*args: torch.Tensor) -> list[torch.Tensor]:
        after, y = fn(of_carry(args[: len(carry)]), of_rows(args[len(carry) :]))
        (flat, make), (made, make_made) = tree_flatten_none(after), tree_flatten_none(y)
        makers[:] = [make, make_made]
        return [one.clone() for one in (*flat, *made)]

    with FakeTensorMode(), torch.no_grad():
        examples = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in carry]
        examples += [torch.empty(t.shape[1:], dtype=t.dtype, device=t.device) for t in rows]
        graph = make_fx(step)(*examples)
    made = run_loop(body_of(graph, len(carry)), carry, rows, (), reverse)
    return makers[0](made[: len(carry)]), makers[1](made[len(carry) :])


class Scan:
    """The loop of what `value_and_grad_partitioned` returns, with a gradient."""

    @staticmethod
    def apply(
        forward: Function, alias_input: Function, backward: Function, init: Any, xs: Any
    ) -> tuple[Any, Any]:
        """The last carried value, and the results of all rows."""
        given, of_given = tree_flatten_none((init, xs))
        makers: list[Function] = []
        flat = _Scan.apply((forward, alias_input, backward, of_given, makers), *given)
        return makers[0](flat)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, functions: Any, *given: torch.Tensor) -> Any:
        forward, alias_input, ctx.of_row, of_given, makers = functions
        init, xs = of_given(given)
        carry, (ys, partial) = _loop(forward, init, xs)
        activations, ctx.of_activations = tree_flatten_none(alias_input(partial, xs))
        ctx.save_for_backward(*activations)
        flat, ctx.of_results = tree_flatten_none((carry, ys))
        makers.append(ctx.of_results)
        return tuple(flat)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        carry, ys = ctx.of_results(gradients)
        activations = ctx.of_activations(ctx.saved_tensors)
        found = _loop(ctx.of_row, carry, (ys, activations), reverse=True)
        return None, *pytree.tree_leaves(found)
