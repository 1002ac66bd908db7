"""Marks around a region of a model, which an exported program has as a composite with a name."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import torch

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "mark_tensor(Tensor x, str name, int pos, str id, bool is_input, str attr='') -> Tensor",
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

    def __init__(self, name: str, attr: Mapping[str, int | float | str | bool] | None = None):
        """Take the name of the composite, and its attributes.

        Raises:
            TypeError: an attribute is no number, bool or text.
        """
        for key, value in (attr or {}).items():
            if not isinstance(value, int | float | str):
                raise TypeError(
                    f"the attribute {key!r} of the composite {name!r} is {type(value).__name__}: "
                    "numbers, bools and texts can be written"
                )
        self._name, self._attributes = name, json.dumps(attr) if attr else ""
        self._id = uuid.uuid4().hex

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, as the operands of the composite; one, or a tuple of several."""
        return self._marked(tensors, True)

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, as the results of the composite; one, or a tuple of several."""
        return self._marked(tensors, False)

    def _marked(self, tensors: tuple[torch.Tensor, ...], is_input: bool) -> Any:
        marked = tuple(
            torch.ops.xla.mark_tensor(x, self._name, i, self._id, is_input, self._attributes)
            for i, x in enumerate(tensors)
        )
        return marked[0] if len(marked) == 1 else marked
