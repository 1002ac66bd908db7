"""`torch_xla.experimental.scan`: fold a function over the rows of tensors, as one loop."""

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import default_partition

from xla_dynamo import torch_private
from xla_dynamo.torch_private import pytree
from xla_dynamo.torch_xla.forms.loop_gradients import (
    LoopWithGradients,
    divide,
)

Function = Callable[..., Any]
Tensors = Sequence[torch.Tensor]
_torch_scan = torch_private.scan  # as Dynamo finds it

# Of functions that are promised to be pure: their graphs, by the forms of what they are given.
_SCAN_COMPUTATION_CACHE: "weakref.WeakKeyDictionary[Function, dict[Any, Any]]" = (
    weakref.WeakKeyDictionary()
)

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define("loop_result(Tensor x, int carried) -> Tensor")
torch.library.impl(
    "xla::loop_result", "CompositeImplicitAutograd", lambda x, _: x.clone(), lib=_library
)
_RESULT = torch.ops.xla.loop_result


def scan(
    fn: Function,
    init: Any,
    xs: Any,
    partition_fn: Function = default_partition,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Fold a function over the first dimension of tensors.

    It is one loop of the program, whose size does not depend on the number of rows. Each row draws
    random numbers of its own, and the backward has the ones that the forward drew. Tensors that
    `fn` finds outside have gradients, too.

    Args:
        fn: takes a carried value and one element of `xs`, and returns the next carried value and
            a result. Both are trees of tensors and None. It must not write into what it is given,
            nor into what it finds outside.
        init: the first carried value: a tree of tensors.
        xs: a tree of tensors that have the same first size.
        partition_fn: divides forward and backward, as `functorch.compile.default_partition`, which
            saves what the backward needs, or `min_cut_rematerialization_partition`.
        is_fn_pure: whether `fn` depends on its arguments alone: it is traced once for each form of
            them. Otherwise Dynamo looks at each call whether what it read is still the same; what
            Dynamo cannot trace is traced at each call.

    Returns:
        The last carried value, and the results one behind the other along a first dimension.

    Raises:
        ValueError: `fn` is no function, `xs` has no tensors, or these have different first sizes;
            the carried value changes its form.
        RuntimeError: `fn` writes into a tensor that it did not make.
    """
    if not callable(fn):
        raise ValueError(f"scan takes a function of a carried value and a row, and not {fn!r}")
    leaves = [leaf for leaf in pytree.tree_leaves(xs) if leaf is not None]
    if not leaves:
        raise ValueError("scan was given no tensors to go through: xs is empty")
    if len({len(leaf) for leaf in leaves}) > 1:
        raise ValueError(
            "the tensors of xs must have the same first size, and they have "
            f"{[len(leaf) for leaf in leaves]}"
        )
    if torch.compiler.is_compiling():
        return _torch_scan(_fresh(fn), init, xs, dim=0)
    if not is_fn_pure:
        try:
            return _captured(fn, init, xs, partition_fn)
        except torch_private.Unsupported:
            pass  # traced without Dynamo
    return _traced(fn, init, xs, partition_fn, is_fn_pure)


def _fresh(fn: Function) -> Function:
    """A function whose results share no memory with what it is given, nor with each other."""

    def fresh(carry: Any, x: Any) -> Any:
        return pytree.tree_map(lambda leaf: leaf.clone(), fn(carry, x))

    return fresh


# --- loops of flat lists of tensors ---------------------------------------------------------------


class _Loop(torch.autograd.Function):
    """A loop of tensors one behind the other: carried ones, rows, and fixed ones."""

    @staticmethod
    def forward(ctx: Any, loop: LoopWithGradients, *tensors: torch.Tensor) -> Any:
        carry, rows, fixed = loop.counts.split(tensors)
        results, stacked = loop.run(carry, rows, fixed)
        ctx.loop, ctx.stacked = loop, len(stacked)
        ctx.save_for_backward(*rows, *fixed, *stacked)
        has = loop.divided.differentiable
        ctx.mark_non_differentiable(*(r for r, h in zip(results, has, strict=True) if not h))
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        loop, saved = ctx.loop, ctx.saved_tensors
        ends = loop.counts.rows, loop.counts.rows + loop.counts.fixed
        given = [g for g, has in zip(gradients, loop.divided.differentiable, strict=True) if has]
        found = loop.run_backward(
            given, saved[ends[1] :], saved[: ends[0]], saved[ends[0] : ends[1]]
        )
        needed = ctx.needs_input_grad[1:]
        return None, *(g if n else None for g, n in zip(found, needed, strict=True))


def _trains(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _run(loop: LoopWithGradients, carry: Tensors, rows: Tensors, fixed: Tensors) -> Tensors:
    return _Loop.apply(loop, *carry, *rows, *fixed)


# --- functions that Dynamo traces -----------------------------------------------------------------


class _Call(threading.local):
    """The tensors of the call that a thread makes: what stands for them, and they themselves."""

    def __init__(self) -> None:
        self.carry: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.real: tuple[Tensors, Tensors] = ((), ())


_call = _Call()


def _captured(fn: Function, init: Any, xs: Any, partition_fn: Function) -> tuple[Any, Any]:
    """The loop of a function, of which Dynamo makes the graph at its first call.

    Dynamo calls its graph with a row of each tensor: the graph then goes through all of them.
    """
    (carry, of_carry), (rows, of_rows) = tree_flatten_none(init), tree_flatten_none(xs)
    shown = [_stand_in(t, t) for t in carry], [_stand_in(t[:1].squeeze(0), t) for t in rows]
    before = _call.carry, _call.rows, _call.real
    _call.carry, _call.rows = ({id(t): i for i, t in enumerate(every)} for every in shown)
    _call.real = carry, rows
    try:
        return _capturing(partition_fn)(fn, of_carry(shown[0]), of_rows(shown[1]))
    finally:
        _call.carry, _call.rows, _call.real = before


def _stand_in(shown: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return shown.detach().requires_grad_(tensor.requires_grad)


def _step(fn: Function, carry: Any, x: Any) -> tuple[Any, Any]:
    carry, y = fn(carry, x)
    flat, spec = pytree.tree_flatten(carry)
    flat = [leaf if leaf is None else _RESULT(leaf, i) for i, leaf in enumerate(flat)]
    made, of_made = pytree.tree_flatten(y)
    made = [leaf if leaf is None else _RESULT(leaf, -1 - i) for i, leaf in enumerate(made)]
    return pytree.tree_unflatten(flat, spec), pytree.tree_unflatten(made, of_made)


@functools.cache
def _capturing(partition_fn: Function) -> Function:
    backend = functools.partial(_loop_of_graph, partition_fn)
    return torch.compile(_step, backend=backend, fullgraph=True, dynamic=False)


def _loop_of_graph(
    partition_fn: Function, graph: torch.fx.GraphModule, _: Sequence[Any]
) -> Function:
    """What Dynamo calls instead of its graph."""
    every = list(graph.graph.output_node().args[0])
    if any(node.target not in (_RESULT, _RESULT.default) for node in every):
        raise RuntimeError(
            "the function of a loop keeps a tensor that it computes outside: each row makes "
            "another one. Return it as a result"
        )
    # Carried values first, in their order, and then results.
    numbers = [int(node.args[1]) for node in every]
    order = sorted(range(len(every)), key=lambda i: (numbers[i] < 0, abs(numbers[i])))
    loops: dict[Any, LoopWithGradients] = {}

    def call(*inputs: torch.Tensor) -> Any:
        carry, rows = _call.real
        known = [(_call.carry.get(id(t)), _call.rows.get(id(t))) for t in inputs]
        outside = [t for t, k in zip(inputs, known, strict=True) if k == (None, None)]
        tensors = (*carry, *rows, *outside)
        key = _trains(tensors), tuple(t.requires_grad for t in tensors)
        loop = loops.get(key)
        if loop is None:
            places, free = [], len(carry) + len(rows)
            for of_carry, of_row in known:
                if of_carry is not None:
                    places.append(of_carry)
                elif of_row is not None:
                    places.append(len(carry) + of_row)
                else:
                    places.append(free)
                    free += 1

            def flat(*args: torch.Tensor) -> list[torch.Tensor]:
                made = graph(*(args[place] for place in places))
                return [made[i] for i in order]

            examples = carry, [_row(t) for t in rows], outside
            divided = divide(flat, examples, partition_fn, key[0])
            loop = loops[key] = LoopWithGradients(divided)
        results = _run(loop, carry, rows, outside)
        by_output = dict(zip(order, results, strict=True))
        return tuple(by_output[i] for i in range(len(order)))

    return call


def _row(tensor: torch.Tensor) -> torch.Tensor:
    row = torch.empty(tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
    return row.requires_grad_(tensor.requires_grad)


# --- functions that are traced as they are --------------------------------------------------------


def _traced(
    fn: Function, init: Any, xs: Any, partition_fn: Function, is_pure: bool
) -> tuple[Any, Any]:
    """The loop of a function that is called once, with fake tensors."""
    carry, rows = tree_flatten_none(init)[0], tree_flatten_none(xs)[0]
    trains = _trains([*carry, *rows])
    loop, of_carry, of_made = graphs_of(fn, init, xs, partition_fn, is_pure, trains)
    results = _run(loop, carry, rows, ())
    return of_carry(results[: len(carry)]), of_made(results[len(carry) :])


def graphs_of(
    fn: Function, init: Any, xs: Any, partition_fn: Function, is_pure: bool, trains: bool
) -> tuple[LoopWithGradients, Function, Function]:
    """The loop of a function of trees, and functions that make trees of its results."""
    (carry, of_carry), (rows, of_rows) = tree_flatten_none(init), tree_flatten_none(xs)
    forms = [[(t.shape, t.dtype, t.requires_grad) for t in every] for every in (carry, rows)]
    specs = [pytree.tree_structure(tree) for tree in (init, xs)]
    key = (id(partition_fn), trains, *map(tuple, forms), *map(repr, specs))
    known = _SCAN_COMPUTATION_CACHE.get(fn, {}) if is_pure else {}
    if key in known:
        return known[key]
    makers: list[Function] = []

    def flat(*args: torch.Tensor) -> list[torch.Tensor]:
        after, y = fn(of_carry(args[: len(carry)]), of_rows(args[len(carry) :]))
        (flat_after, make), (made, make_made) = tree_flatten_none(after), tree_flatten_none(y)
        makers[:] = [make, make_made]
        return [*flat_after, *made]

    examples = carry, [_row(t) for t in rows], ()
    loop = LoopWithGradients(divide(flat, examples, partition_fn, trains))
    found = loop, makers[0], makers[1]
    if is_pure:
        _SCAN_COMPUTATION_CACHE.setdefault(fn, {})[key] = found
    return found


# --- names of PyTorch/XLA's own loop --------------------------------------------------------------


def split(seq: Sequence[Any], *part_lengths: int) -> tuple[Sequence[Any], ...]:
    """Parts of a list or tuple that have these lengths, and what is left behind them.

    >>> split((1, 2, 3, 4, 5), 2, 2)
    ((1, 2), (3, 4), (5,))
    """
    ends = list(itertools.accumulate(part_lengths, initial=0))
    return *(seq[a:b] for a, b in itertools.pairwise(ends)), seq[ends[-1] :]


def tree_flatten_none(pytree: Any) -> tuple[list[Any], Function]:
    """The leaves of a tree but None, and a function that makes the tree of others.

    >>> leaves, make = tree_flatten_none(((1, None), 2))
    >>> leaves, make([3, 4])
    ([1, 2], ((3, None), 4))
    """
    leaves, spec = torch_private.pytree.tree_flatten(pytree)
    there = [leaf is not None for leaf in leaves]

    def unflatten(flat: Sequence[Any]) -> Any:
        given = iter(flat)
        every = [next(given) if is_there else None for is_there in there]
        return torch_private.pytree.tree_unflatten(every, spec)

    return [leaf for leaf in leaves if leaf is not None], unflatten
