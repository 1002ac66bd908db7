"""Names of `torch_xla.experimental` for loops, each one executable however often it goes round."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from xla_dynamo import torch_private
from xla_dynamo.torch_private import pytree

Function = Callable[..., Any]
_scan, _while_loop = torch_private.scan, torch_private.while_loop  # as Dynamo finds them


def assume_pure(function: Function) -> Function:
    """A function of tensors that is compiled once for each form of its arguments.

    It must depend on nothing else, and change nothing. Gradients pass.
    """
    compiled = torch.compile(function, backend="openxla", fullgraph=True, dynamic=False)
    return functools.wraps(function)(lambda *args, **kwargs: compiled(*args, **kwargs))


def scan(
    fn: Function,
    init: Any,
    xs: Any,
    *,
    partition_fn: Any = None,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Fold a function over the first dimension of tensors.

    Args:
        fn: takes a carried value and one element of `xs`, and returns the next carried value and
            a result.
        init: the first carried value: a tree of tensors.
        xs: a tree of tensors that have the same first size.
        partition_fn: not used: how forward and backward are divided is AOTAutograd's.
        is_fn_pure: not used: a loop is compiled in any case.

    Returns:
        The last carried value, and the results one behind the other along a first dimension.

    Raises:
        ValueError: `xs` has no tensors, or these have different first sizes.
    """
    leaves = pytree.tree_leaves(xs)
    if not leaves:
        raise ValueError("scan was given no tensors to go through: xs is empty")
    if len({leaf.shape[0] for leaf in leaves}) > 1:
        raise ValueError(f"scan goes through sizes {[leaf.shape[0] for leaf in leaves]}")
    return _folded(fn, init, xs)


def _fold(fn: Function, init: Any, xs: Any) -> Any:
    return _scan(fn, init, xs, dim=0)


# One for all functions: Dynamo keeps a program for each that it has met.
_folded = torch.compile(_fold, backend="openxla", fullgraph=True, dynamic=False)


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    *,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> Any:
    """What layers of one structure make of a value, one after another, as one loop.

    Raises:
        ValueError: the layers differ in their parameters' names, shapes or dtypes.
    """
    every = list(layers)
    if not every:
        return input_data
    first = every[0]
    names = [_form_of(layer) for layer in every]
    for number, form in enumerate(names):
        if form != names[0]:
            raise ValueError(f"layer {number} differs from layer 0: {form} and {names[0]}")
    stacked = {
        name: torch.stack([dict(_state(layer))[name] for layer in every])
        for name, _ in _state(first)
    }

    def step(carried: Any, state: dict[str, torch.Tensor]) -> tuple[Any, Any]:
        return torch.func.functional_call(first, state, carried), torch.zeros(())

    return scan(step, input_data, stacked)[0]


def _state(layer: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*layer.named_parameters(), *layer.named_buffers()]


def _form_of(layer: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in _state(layer)]


def while_loop(
    cond_fn: Function, body_fn: Function, carried_inputs: Any, additional_inputs: Any = None
) -> Any:
    """Torch's `while_loop`: go round as long as a condition of the carried values is true.

    Args:
        cond_fn: takes the carried values, and returns a tensor of one boolean.
        body_fn: takes them too, and returns those of the next turn, of the same forms.
        carried_inputs: a tuple of tensors.
        additional_inputs: tensors that both functions take behind the carried values.
    """
    return _gone_round(cond_fn, body_fn, tuple(carried_inputs), tuple(additional_inputs or ()))


def _go_round(cond_fn: Function, body_fn: Function, carried: Any, others: Any) -> Any:
    return _while_loop(
        lambda *values: cond_fn(*values, *others),
        lambda *values: tuple(value.clone() for value in body_fn(*values, *others)),
        carried,
    )


_gone_round = torch.compile(_go_round, backend="openxla", fullgraph=True, dynamic=False)


def fori_loop(lower: Any, upper: Any, body_fun: Function, *input_value: torch.Tensor) -> Any:
    """Call a function for each number from one to below another.

    Args:
        lower: a tensor of one integer: the first number.
        upper: the same: the number behind the last one.
        body_fun: takes the number and the values, and returns the next values: a tensor, or a
            tuple of them.
        input_value: the first values.

    Returns:
        The last values: a tensor if there is one.
    """
    start, stop = (torch.as_tensor(n, device=input_value[0].device) for n in (lower, upper))

    def body(number: torch.Tensor, stop: torch.Tensor, *values: torch.Tensor) -> Any:
        made = body_fun(number, *values)
        made = made if isinstance(made, tuple | list) else (made,)
        return (number + 1, stop, *made)

    last = while_loop(lambda number, stop, *_: number < stop, body, (start, stop, *input_value))
    values = tuple(last)[2:]
    return values[0] if len(values) == 1 else values
