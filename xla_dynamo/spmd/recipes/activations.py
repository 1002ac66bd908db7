"""Mark activations where a compiled region passes them, and nowhere else.

Recipes mark what modules take and return. Eager code calls the same modules: there an activation
stays as it is, since a mark outside of compiled regions is a note on a tensor that lives on.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch

from xla_dynamo.runtime.mesh import UNCONSTRAINED, Mesh
from xla_dynamo.spmd.operators import mark_in_graph
from xla_dynamo.spmd.partition_spec import PartitionSpec, axes_of
from xla_dynamo.torch_private import is_tracing_here


def mark_activation(
    x: torch.Tensor, mesh: Mesh, spec: PartitionSpec, replicated_axes: Sequence[str] = ()
) -> torch.Tensor:
    """Shard an activation and its gradient, in a compiled region; elsewhere returns it.

    Args:
        x: the activation.
        mesh: the devices.
        spec: as for `mark_sharding`.
        replicated_axes: axes of the mesh that shard no dimension, as those that are UNCONSTRAINED.
    """
    if not is_tracing_here():
        return x
    return mark_in_graph(x, mesh, axes_of(mesh, spec), x.is_floating_point(), replicated_axes)


def shard_dimension(x: torch.Tensor, mesh: Mesh, dim: int, axes: Sequence[str]) -> torch.Tensor:
    """Shard one dimension of an activation, which may be negative; others as suits the program."""
    spec: list[Any] = [UNCONSTRAINED] * x.dim()
    spec[dim] = tuple(axes)
    return mark_activation(x, mesh, spec)


def replicate(x: torch.Tensor, mesh: Mesh, axis: str) -> torch.Tensor:
    """Shard no dimension of an activation by this axis; by others as suits the program."""
    return mark_activation(x, mesh, [UNCONSTRAINED] * x.dim(), (axis,))


def map_tensors(
    fn: Callable[[torch.Tensor], torch.Tensor], value: Any, in_place: bool = False
) -> Any:
    """What a module takes or returns, with a function applied to each tensor in it.

    Looks into tuples, lists and dicts. A mapping of another class, such as the output of one of
    transformers' models, is itself given the new values if `in_place`, and else stays as it is.
    """
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, list):
        return [map_tensors(fn, v, in_place) for v in value]
    if isinstance(value, tuple):
        mapped = [map_tensors(fn, v, in_place) for v in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else tuple(mapped)
    if type(value) is dict:
        return {k: map_tensors(fn, v, in_place) for k, v in value.items()}
    if in_place and isinstance(value, MutableMapping):
        for key in list(value.keys()):
            value[key] = map_tensors(fn, value[key], in_place)
    return value
