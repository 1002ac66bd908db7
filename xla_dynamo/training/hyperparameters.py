"""An optimizer's hyperparameters as tensors of a trace, so that a schedule does not recompile.

Optimizers are written for Python numbers. In a trace each number that may change is a 0-d float64
tensor, as precise as the number. The few functions of torch that insist on numbers are replaced by
functions of tensors.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

Tensor: TypeAlias = torch.Tensor
# The group's index, the hyperparameter's name, and its position where it is one of several (betas).
Name: TypeAlias = tuple[int, str, int | None]

_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def hyperparameters(optimizer: torch.optim.Optimizer) -> dict[Name, Any]:
    """The entries of `param_groups`, those of tuples and lists one by one."""
    found: dict[Name, Any] = {}
    for index, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if isinstance(value, tuple | list) and name != "params":
                found |= {(index, name, position): v for position, v in enumerate(value)}
            elif name != "params":
                found[index, name, None] = value
    return found


def with_values(index: int, group: dict[str, Any], values: Mapping[Name, Any]) -> dict[str, Any]:
    """A copy of the `index`-th group with other values of some hyperparameters."""
    group = dict(group)
    for (owner, name, position), value in values.items():
        if owner == index and position is None:
            group[name] = value
        elif owner == index and position is not None:
            entries = [*group[name][:position], value, *group[name][position + 1 :]]
            group[name] = type(group[name])(entries)
    return group


class NumbersAsTensors(TorchFunctionMode):
    """Runs code whose numbers are 0-d tensors.

    Attributes:
        guards: the comparisons that the code has made, as (name, test, outcome). What was traced
            holds for other numbers only while they come out the same.
    """

    def __init__(self, tensors: Mapping[Name, Tensor], values: Mapping[Name, Any]) -> None:
        """Take the tensors in the trace, and the values that they have now."""
        super().__init__()
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._values = values
        self.guards: list[tuple[Name, Callable[[Any], bool], bool]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operation = getattr(func, "__name__", "").strip("_")
        if operation in _COMPARISONS and id(args[0]) in self._names:
            return self._compare(self._names[id(args[0])], _COMPARISONS[operation], args[1])
        if operation in ("add", "sub") and isinstance(a := kwargs.get("alpha"), torch.Tensor):
            return func(args[0], args[1] * a)
        if operation in ("addcmul", "addcdiv") and isinstance(
            v := kwargs.get("value"), torch.Tensor
        ):
            return func(args[0], args[1] * v, args[2])
        if operation == "lerp" and isinstance(args[2], torch.Tensor) and args[2].ndim == 0:
            return func(args[0], args[1], args[2].to(args[0].dtype))
        if operation in ("pow", "rpow") and all(a.ndim == 0 for a in args if torch.is_tensor(a)):
            # Bias corrections, 1 - 0.999**step: in eager the step count is a number here.
            args = tuple(a.double() if torch.is_tensor(a) else a for a in args)
        if operation == "item" and args[0].dtype is torch.float64:
            return args[0]
        return func(*args, **kwargs)

    def _compare(self, name: Name, compare: Callable[[Any, Any], bool], other: Any) -> Any:
        def test(value: Any) -> bool:
            return bool(compare(value, other))

        outcome = test(self._values[name])
        self.guards.append((name, test, outcome))
        return outcome
