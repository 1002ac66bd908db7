"""flex_attention: attention whose scores and mask the user writes as functions.

torch's own dense form (matrix product, the functions vectorized over all scores, softmax) is traced
at the graph's sizes, and XLA fuses the functions with the operations around them.
"""

from typing import Any

import torch

from xla_dynamo.lowerings.builders.build import is_value
from xla_dynamo.lowerings.table import Context, lowers
from xla_dynamo.torch_private import DispatchKey, pytree


@lowers("flex_attention")
def flex_attention(ctx: Context, *args: Any) -> Any:
    """(out, logsumexp, maxima); the functions come as graphs."""
    leaves, spec = pytree.tree_flatten(args)
    fakes = pytree.tree_leaves(ctx.operands, is_leaf=lambda x: x is None)
    indices = [i for i, leaf in enumerate(leaves) if is_value(leaf)]

    def run(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for index, tensor in zip(indices, tensors, strict=True):
            filled[index] = tensor
        return dense_form()(*pytree.tree_unflatten(filled, spec))

    return ctx.inline(run, [leaves[i] for i in indices], [fakes[i] for i in indices])


def dense_form() -> Any:
    """The function with which torch runs flex_attention where it has no kernel for it."""
    op = torch.ops.higher_order.flex_attention
    return op.py_kernels[DispatchKey.CompositeExplicitAutograd]
