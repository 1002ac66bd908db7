"""Operators whose lowering is a function of `Op`s that a user writes."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.switches.pytorch_xla import OP_PRINT_COMPUTATIONS
from xla_dynamo.xla_builder.computations import get_computation_hlo
from xla_dynamo.xla_builder.op import create_computation
from xla_dynamo.xla_builder.shapes import Shape, type_name_of
from xla_dynamo.xla_builder.user_computation import call
from xla_dynamo.xla_builder.user_computation import register as register_computation

# By number, which a graph that Dynamo traces has.
_operators: list["Op"] = []


class Op:
    """An operator of tensors with a lowering in Python."""

    def __init__(self, name: str, opfn: Callable[..., Any]) -> None:
        """Take a name, and a function of `xla_builder.Op`s and keyword arguments."""
        self._name, self._opfn = name, opfn
        self._number = len(_operators)
        self._keys: dict[Any, str] = {}
        _operators.append(self)

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        """Call the operator.

        Args:
            args: tensors of the 'xla' device or of the CPU, or in a function that is compiled.
            kwargs: what the lowering takes beside them: no tensors.

        Returns:
            A tensor, or a list of them if the lowering returns a tuple of several. They have no
            gradients: a `torch.autograd.Function` gives them.

        Raises:
            TypeError: an argument is no tensor.
        """
        for one in args:
            if not isinstance(one, torch.Tensor):
                raise TypeError(
                    f"{self._name} takes tensors, not {type(one).__name__}: give other arguments "
                    "to the lowering by keyword"
                )
        kinds = tuple((x.dtype, tuple(map(int, x.shape))) for x in args)
        made = call(_key_of(self._number, kinds, kwargs), args)
        return made[0] if len(made) == 1 else made

    def key_of(self, kinds: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """The key of the computation for tensors of these dtypes and shapes."""
        key = (tuple(kinds), repr(sorted(kwargs.items())))
        if key not in self._keys:
            shapes = [Shape.create(type_name_of(dtype), sizes) for dtype, sizes in kinds]
            made = create_computation(self._name, self._opfn, shapes, **kwargs)
            if OP_PRINT_COMPUTATIONS.get():
                print(get_computation_hlo(made), file=sys.stderr)
            self._keys[key] = register_computation(made)
        return self._keys[key]


@torch.compiler.assume_constant_result
def _key_of(number: int, kinds: Sequence[Any], kwargs: dict[str, Any]) -> str:
    return _operators[number].key_of(kinds, kwargs)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """An operator of tensors with a lowering in Python.

        def slice_and_add(a, b, dimno=0):
            first = a.slice_in_dim(start_index=0, limit_index=1, dimno=dimno)
            return first + b.slice_in_dim(start_index=1, limit_index=2, dimno=dimno)

        SLICE_AND_ADD = register("slice_and_add", slice_and_add)
        z = SLICE_AND_ADD(x, y, dimno=1)

    Register an operator once: it is lowered once for each set of shapes and keyword arguments.

    Args:
        name: of the operator.
        opfn: takes an `xla_builder.Op` for each tensor, and the keyword arguments of the call.
    """
    return Op(name, opfn)
