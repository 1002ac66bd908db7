"""What does not work, and why: each row is a test that must fail, and a line in the docs."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Limitation:
    """An operator of torch's database that the backend does not get right at some dtypes.

    Attributes:
        op: the name in `op_db`, with ".variant" where it has one.
        dtypes: where it fails; elsewhere it must pass.
        reason: what stands in the way, for the person who would lift it.
    """

    op: str
    dtypes: tuple[torch.dtype, ...]
    reason: str


LIMITATIONS: list[Limitation] = []


# Operators that torch itself cannot compile with fullgraph=True (`backend="aot_eager"` fails on
# every sample too): mostly those whose result's size depends on the data. They count neither way.
TORCH_STOPS: dict[torch.dtype, frozenset[str]] = {}
