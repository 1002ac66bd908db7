"""Marks around a region of a model, which an exported program has as a composite with a name."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import torch

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "mark_tensor(Tensor x, str name, int pos, str id, bool is_input, str? attr=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _unchanged(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x.clone()


def _like(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return gradient, None, None, None, None, None


torch.library.impl("xla::mark_tensor", "CompositeExplicitAutograd", _unchanged, lib=_library)
torch.library.register_fake("xla::mark_tensor", _like, lib=_library)
torch.library.register_autograd("xla::mark_tensor", _gradient, lib=_library)


def serialize_composite_attr(attr: Mapping[str, Any] | None) -> str | None:
    """The attributes of a composite in the form that `torch.ops.xla.mark_tensor` takes.

    Raises:
        ValueError: they are no mapping of texts to numbers, bools, texts, or lists of numbers or
            bools of one kind.
    """
    if attr is None:
        return None
    if not isinstance(attr, Mapping):
        raise ValueError(f"attributes of a composite are a dictionary, not {type(attr).__name__}")
    for key, value in attr.items():
        is_list = isinstance(value, list | tuple)
        kinds = {type(one) for one in value} if is_list else {type(value)}
        allowed = {int, float, bool} if is_list else {int, float, bool, str}
        if not isinstance(key, str) or len(kinds) != 1 or not kinds <= allowed:
            raise ValueError(
                f"the attribute {key!r} of a composite is {value!r}: names are texts, and values "
                "numbers, bools, texts, or lists of numbers or bools of one kind"
            )
    return json.dumps(dict(attr))


def deserialize_composite_attr(attr: str | None) -> dict[str, Any] | None:
    """The attributes of a composite that `serialize_composite_attr` wrote."""
    return None if attr is None else dict(json.loads(attr))


class StableHLOCompositeBuilder:
    """Marks the inputs and outputs of a region of a model, which becomes a composite.

    The name and the methods are those of PyTorch/XLA's
    `torch_xla.experimental.mark_pattern_utils.StableHLOCompositeBuilder`. Make one for each call of
    the region, inside the model's forward.

    >>> builder = StableHLOCompositeBuilder("mylib.attention", {"scale": 0.5})
    >>> q, k, v = builder.mark_inputs(q, k, v)
    >>> out = builder.mark_outputs(torch.softmax(q @ k.mT * 0.5, -1) @ v)

    In eager, and under `torch.compile`, the marks are copies, and change nothing.
    """

    def __init__(self, name: str, attr: Mapping[str, Any] | None = None):
        """Take the name of the composite, and its attributes.

        Raises:
            ValueError: see `serialize_composite_attr`.
        """
        self._name, self._attributes = name, serialize_composite_attr(attr)
        self._id = uuid.uuid4().hex

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, as the operands of the composite; one, or a tuple of several."""
        return self._marked(tensors, True)

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, as the results of the composite; one, or a tuple of several."""
        return self._marked(tensors, False)

    def _marked(self, tensors: tuple[torch.Tensor, ...], is_input: bool) -> Any:
        for one in tensors:
            if not isinstance(one, torch.Tensor):
                raise ValueError(f"tensors are marked, not {type(one).__name__}")
        marked = tuple(
            torch.ops.xla.mark_tensor(x, self._name, i, self._id, is_input, self._attributes)
            for i, x in enumerate(tensors)
        )
        return marked[0] if len(marked) == 1 else marked
