"""The optimizer's state is sharded over a mesh as its parameters are."""

import torch

from xla_dynamo.runtime import marks


def mark_state(optimizer: torch.optim.Optimizer) -> None:
    """Mark the state of each parameter that is marked: tensors of its shape, like itself.

    State that the user has marked keeps its mark.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            sharding = marks.sharding_of(p)
            if sharding is None:
                continue
            for value in optimizer.state.get(p, {}).values():
                if (
                    isinstance(value, torch.Tensor)
                    and value.shape == p.shape
                    and marks.sharding_of(value) is None
                ):
                    marks.mark(value, sharding)
