"""Trace for inputs that have memory of their own, also where the first call's share it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.torch_private import FakeTensor, is_traceable_wrapper_subclass, storage_id


def with_own_memory(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> list[Any]:
    """The inputs that a graph is traced with, none of which shares memory with another.

    AOTAutograd takes inputs that overlap, if the graph changes one, for parts of one input; and a
    result in shared memory for a view of whichever input it finds. No guard of torch's says in
    later calls that it is still so. Traced apart, a graph holds for inputs that are apart, and its
    results are views of the inputs that the user's code says.
    """
    found = list(examples)
    plain = [
        i
        for i, x in enumerate(examples)
        if isinstance(x, torch.Tensor)
        and x.layout is torch.strided
        and not is_traceable_wrapper_subclass(x)
    ]
    uses = Counter(storage_id(examples[i]) for i in plain)
    placeholders = gm.graph.find_nodes(op="placeholder")
    for i in plain:
        if uses[storage_id(examples[i])] > 1:
            fake = examples[i]
            if not isinstance(fake, FakeTensor):
                fake = placeholders[i].meta.get("example_value")
            if isinstance(fake, FakeTensor):
                found[i] = _apart(fake)
    return found


def _apart(fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor like another one, in a storage of its own."""
    with fake.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        length = fake.untyped_storage().nbytes() // fake.itemsize
        memory = torch.empty(length, dtype=fake.dtype, device=fake.device)
        like = memory.as_strided(fake.shape, fake.stride(), fake.storage_offset()).detach()
    like.requires_grad_(fake.requires_grad)
    if fake.requires_grad and not fake.is_leaf:
        with fake.fake_mode, torch.enable_grad():  # type: ignore[attr-defined]
            return like.view_as(like)
    return like
