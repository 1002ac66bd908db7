"""Rows of stacks in computations of XLA's builder, and parameters that a builder numbers."""

import torch

from xla_dynamo.xla_builder import Op, create_builder, mkparam, tensor_shape


def dynamic_slice(xs: Op, idx: Op) -> Op:
    """The row of a stack that a number says: an array of one dimension less."""
    sizes = list(xs.shape().sizes)
    starts = [idx, *(idx.zeros_like() for _ in sizes[1:])]
    return xs.dynamic_slice(starts, [1, *sizes[1:]]).reshape(sizes[1:])


def dynamic_update_slice(ys: Op, y: Op, idx: Op) -> Op:
    """A stack with another row in the place that a number says."""
    starts = [idx, *(idx.zeros_like() for _ in list(ys.shape().sizes)[1:])]
    return ys.dynamic_update_slice(y.broadcast([1]), starts)


class Builder:
    """Numbers the parameters of a computation, one for each tensor."""

    def __init__(self, name: str) -> None:
        """Begin a computation of a name."""
        self._builder = create_builder(name)
        self._params: list[Op] = []
        self._tensors: list[torch.Tensor] = []

    def add_param(self, val: torch.Tensor) -> int:
        """Make a parameter of the form of a tensor; returns its number."""
        self._params.append(mkparam(self._builder, len(self._params), tensor_shape(val)))
        self._tensors.append(val)
        return len(self._params) - 1

    def params(self) -> tuple[Op, ...]:
        """The parameters, in the order of their numbers."""
        return tuple(self._params)

    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that they were made for."""
        return tuple(self._tensors)

    def num_params(self) -> int:
        """How many parameters there are."""
        return len(self._params)
