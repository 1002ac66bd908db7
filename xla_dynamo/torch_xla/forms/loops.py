"""Names of `torch_xla.experimental` for loops, each one executable however often it goes round."""

from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo import torch_private

Function = Callable[..., Any]
_while_loop = torch_private.while_loop  # as Dynamo finds it


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
