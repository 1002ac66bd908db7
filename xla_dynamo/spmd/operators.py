"""The operator that marks a tensor in a graph: `torch.ops.xla.mark_sharding`."""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.forward_mode import refuse_forward_mode

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "mark_sharding(Tensor x, int[] device_ids, int[] mesh_shape, str[] axis_names, "
    "str[] partition_spec, bool with_gradients=False, str replicated_axes='') -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)


def _unchanged(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """A tensor with the elements of x: what a mark is where nothing is sharded."""
    return x.clone()


def _like(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _keep_spec(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, *ctx.spec, with_gradients, replicated_axes = inputs
    ctx.rest = with_gradients, replicated_axes


def _gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    with_gradients, replicated_axes = ctx.rest
    if with_gradients:
        gradient = torch.ops.xla.mark_sharding(gradient, *ctx.spec, False, replicated_axes)
    return gradient, None, None, None, None, None, None


torch.library.impl("xla::mark_sharding", "CompositeExplicitAutograd", _unchanged, lib=_library)
torch.library.register_fake("xla::mark_sharding", _like, lib=_library)
torch.library.register_autograd(
    "xla::mark_sharding", _gradient, setup_context=_keep_spec, lib=_library
)


MARK = torch.ops.xla.mark_sharding.default


def mark_in_graph(
    x: torch.Tensor,
    mesh: Mesh,
    axes: list[list[str]],
    with_gradients: bool,
    replicated_axes: Sequence[str] = (),
) -> torch.Tensor:
    """Mark a tensor of a graph. Dynamo traces this.

    The partitioner shards no dimension by one of the replicated axes, not even a dimension that is
    `UNCONSTRAINED`.
    """
    refuse_forward_mode()
    names = [",".join(a) for a in axes]
    return torch.ops.xla.mark_sharding(
        x,
        mesh.ids,
        mesh.mesh_shape,
        mesh.axis_names,
        names,
        with_gradients,
        ",".join(replicated_axes),
    )
