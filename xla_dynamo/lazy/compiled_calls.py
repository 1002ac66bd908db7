"""Compiled graphs on 'xla' tensors: their programs work in the memory of computed values."""

from typing import Any

import torch

from xla_dynamo.lazy import random_state
from xla_dynamo.lazy.contents import cell_of, new_tensor, value_of
from xla_dynamo.lazy.execution import compute, running, shown


class LazyTensors:
    """What `runtime.placement.DeviceTensors` asks for."""

    in_use = running
    generator = random_state.generator

    def memory_of(self, args: list[Any], *, changes: bool) -> list[Any]:
        """The arguments, with the memory of the 'xla' tensors among them.

        A program that changes the memory of some must not change what is still to be read: so
        before it all is computed that is pending, and not the arguments alone.
        """
        found = [a for a in args if isinstance(a, torch.Tensor) and a.device.type == "xla"]
        pending = [v for a in found if (v := cell_of(a).value).tensor is None]
        if changes:
            compute()
        elif pending:
            compute(pending)
        memory = {id(a): shown(a, cell_of(a).value.tensor) for a in found}
        return [memory.get(id(a), a) for a in args]

    def over(self, memory: torch.Tensor) -> torch.Tensor:
        """A tensor of the device with this memory."""
        return new_tensor(value_of(memory))
