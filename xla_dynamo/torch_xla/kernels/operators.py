"""Operators in `torch.ops.xla` that consist of other operators of torch's."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from xla_dynamo.runtime.topology import device_type

_F = TypeVar("_F", bound=Callable[..., Any])

# Lives as long as the process: torch forgets what a Library registered when it dies.
library = torch.library.Library("xla", "FRAGMENT")


def operator(schema: str) -> Callable[[_F], _F]:
    """Make a function an operator of the namespace xla; returns the function.

    Autograd, Dynamo and every device see the operators that the function calls.

    Args:
        schema: of the operator, with its name.
    """

    def register(function: _F) -> _F:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")
        return function

    return register


@torch.compiler.assume_constant_result
def runs_on_tpu(device: str) -> bool:
    """Whether programs that read tensors of a type of device run on a TPU."""
    return device == "xla" and device_type() == "TPU"
