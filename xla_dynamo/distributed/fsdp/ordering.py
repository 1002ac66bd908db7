"""The operator `torch.ops.xla.after`: a tensor whose readers wait until another is computed.

XLA would otherwise gather a parameter once for the forward and the backward, and keep it between;
or gather those of all layers before it computes the first.
"""

from typing import Any

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.table import Context, lowers

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "after(Tensor x, Tensor other) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)


def _copied(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x.clone()


torch.library.impl("xla::after", "CompositeExplicitAutograd", _copied, lib=_library)
torch.library.register_fake("xla::after", lambda x, other: torch.empty_like(x), lib=_library)


@lowers("xla.after.default")
def _after(ctx: Context, x: Any, other: Any) -> Any:
    return hlo.optimization_barrier([x, other])[0]


def after(x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    """The elements of a tensor, for operators that XLA runs when another tensor is computed.

    Args:
        x: the tensor.
        other: the one to wait for, of the device too; None to wait for none.
    """
    if other is None or other.device != x.device:
        return x
    made: torch.Tensor = torch.ops.xla.after(x, other)
    return made
