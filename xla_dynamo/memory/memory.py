"""The protocol of a placement's memory: who may address a program's arguments and results.

A program's call asks its memory for the buffers of tensors, and for the tensors of buffers. A new
kind of placement is one class with these methods, and one line in `memory_of`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from xla_dynamo.programs.program import Constant, Donated, Input
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.placement import Placement

# Takes the graph's inputs and torch's stream (None where there are none); returns the buffers of
# some of the program's arguments.
Supply: TypeAlias = Callable[[Sequence[Any], int | None], Sequence[Buffer]]
# The results of an execution: of each one, its buffer on each device.
Results: TypeAlias = list[list[Buffer]]


class Memory(Protocol):
    """The memory of the devices that a program runs on.

    Attributes:
        placement: the devices.
    """

    placement: Placement

    def inputs(self, slots: Sequence[Input]) -> list[Supply]:
        """Functions that give the buffers of inputs, in their order, for tensors of torch's."""

    def constants(self, constants: Sequence[Constant]) -> Supply:
        """A function that gives the buffers of a graph's own tensors as they are at a call."""

    def fresh(self, tensor: torch.Tensor, stream: int | None) -> Buffer:
        """The buffer of a tensor that comes once."""

    def taken(self, slots: Sequence[Input], buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Buffers of a caller's as the program reads them."""

    def tensors(self, results: Results, stream: int | None) -> list[torch.Tensor]:
        """Tensors of torch's with the elements of the results."""

    def buffers(self, results: Results) -> list[Buffer]:
        """One buffer for each result."""

    def write_back(
        self,
        slots: Sequence[Donated],
        tensors: Sequence[torch.Tensor],
        results: Results,
        stream: int | None,
    ) -> None:
        """Give tensors that a program changes their new values, unless they have them by now."""
