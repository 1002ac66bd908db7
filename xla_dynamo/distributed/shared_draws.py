"""Random numbers of DTensors on 'xla': as `normal_` and dropout on a parameter that is sharded.

Processes that hold the same shard must draw the same numbers, and others must not. Torch arranges
that by the offset in the state of a CUDA generator, which the device's generator does not have. So
each draw takes a seed from the device's generator, the same in all processes, and a shard adds its
place in the whole tensor.
"""

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from xla_dynamo.lazy import random_state
from xla_dynamo.torch_private import DTensorDraws, set_dtensor_draws


class _Draws(DTensorDraws):
    """What torch asks to run a draw: the methods that it calls.

    Attributes:
        distribute_region_enabled: whether it asks for draws at all.
    """

    distribute_region_enabled = True  # a property of torch's, whose setter this takes the place of

    def __init__(self) -> None:
        """Nothing is agreed on yet: the processes may not all have seeded their generators."""
        self._is_agreed = False

    @contextlib.contextmanager
    def _distribute_region(
        self, spec: Any, generator: torch.Generator | None = None
    ) -> Iterator[None]:
        """Run a draw of a DTensor in this block.

        Args:
            spec: torch's `DTensorSpec`, of the mesh, the shape and the placements.
            generator: the user's, if any, in the same state in all processes.
        """
        if spec.mesh.device_type != "xla":
            yield
            return
        own = random_state.generator if generator is None else generator
        if not self._is_agreed:  # as torch does, once
            state = random_state.generator.get_state()
            dist.broadcast(state, 0)
            random_state.generator.set_state(state)
            self._is_agreed = True
        drawn = torch.empty(1, dtype=torch.int64, device="cpu").random_(generator=own)
        place = types.SimpleNamespace(offset=torch.zeros(1, dtype=torch.int64, device="cpu"))
        self._set_pre_op_offset(place, spec)
        state = own.get_state()
        own.manual_seed(int(drawn) ^ int(place.offset))
        try:
            yield
        finally:
            own.set_state(state)


@functools.cache
def let_dtensors_draw() -> None:
    """From now on, draws of DTensors on 'xla' are made so, in all threads."""
    set_dtensor_draws(_Draws())
