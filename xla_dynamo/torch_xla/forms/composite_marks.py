"""Names of `torch_xla.experimental.xla_marker`: what `StableHLOCompositeBuilder` is made of."""

import dataclasses
import json
from typing import Any

import torch

from xla_dynamo.stablehlo.composites import (
    deserialize_composite_attr,
    serialize_composite_attr,
)


@dataclasses.dataclass
class BoundaryMetadata:
    """What a mark says.

    Attributes:
        name: of the composite.
        pos: the tensor's place among its inputs or outputs.
        id: of this call of it.
        is_input: whether the tensor is an input.
        attr: the composite's attributes, at an output.
    """

    name: str
    pos: int
    id: str
    is_input: bool = True
    attr: dict[str, Any] | None = None


class BoundaryMetadataSerializer(json.JSONEncoder):
    """Writes dataclasses, such as `BoundaryMetadata`, as JSON."""

    def default(self, obj: Any) -> Any:
        """A dataclass as a dictionary."""
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return dataclasses.asdict(obj)
        return super().default(obj)


def mark_tensor(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: str | None = None
) -> torch.Tensor:
    """A copy of a tensor, marked as an input or output of a composite.

    Args:
        x: the tensor.
        name: of the composite.
        pos: the tensor's place among its inputs or outputs.
        id: of this call of it.
        is_input: whether the tensor is an input.
        attr: the composite's attributes, as `serialize_composite_attr` gives them.
    """
    made: torch.Tensor = torch.ops.xla.mark_tensor(x, name, pos, id, is_input, attr)
    return made


mark_tensor_xla = mark_tensor_meta = mark_tensor

__all__ = [
    "BoundaryMetadata",
    "BoundaryMetadataSerializer",
    "deserialize_composite_attr",
    "mark_tensor",
    "mark_tensor_meta",
    "mark_tensor_xla",
    "serialize_composite_attr",
]
