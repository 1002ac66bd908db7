"""Refuse forward-mode derivatives, which torch loses at operators of libraries."""

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.torch_private import in_forward_mode


@torch.compiler.assume_constant_result
def refuse_forward_mode() -> None:
    """Raise ShardingError inside `torch.func.jvp` or a dual level; Dynamo calls this."""
    if in_forward_mode():
        raise ShardingError(
            "marks, manual regions and collectives have no forward-mode derivatives: take them out "
            "of what torch.func.jvp or a dual level runs, or use torch.func.vjp"
        )
