"""Sequence parallel: a part of each sequence on each device, and in attention some of the heads.

This is DeepSpeed Ulysses (arXiv:2309.14509) by marks: before and after attention, devices exchange
parts of the sequence for heads, in an all-to-all for each of query, key, value and result.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.recipes.activations import map_tensors, replicate, shard_dimension
from xla_dynamo.spmd.recipes.axes import checked_axes, mesh_or_global
from xla_dynamo.spmd.recipes.forwards import map_inputs, map_output, wrap_forward
from xla_dynamo.spmd.recipes.plans import check_heads, heads_of, modules_ending_in
from xla_dynamo.spmd.recipes.styles import ParallelStyle
from xla_dynamo.spmd.recipes.tensor_parallel import parallelize_module


class SequenceToHeads(ParallelStyle):
    """The projection to query, key or value: computed by sequence, and handed on by heads.

    Args:
        heads: how many heads it makes. If the devices do not divide them, they are gathered.
        sequence_dim: the dimension of the sequence.
    """

    def __init__(self, heads: int | None = None, *, sequence_dim: int = 1) -> None:
        self.heads, self.sequence_dim = heads, sequence_dim

    def apply(self, module: torch.nn.Module, name: str, mesh: Mesh, axis: str) -> None:
        """Have the module's forward mark what it returns; its parameters stay as they are."""
        uneven = self.heads is not None and self.heads % mesh.shape()[axis]

        def mark(x: torch.Tensor) -> torch.Tensor:
            x = shard_dimension(x, mesh, self.sequence_dim, (axis,))
            return replicate(x, mesh, axis) if uneven else shard_dimension(x, mesh, -1, (axis,))

        map_output(module, lambda output: map_tensors(mark, output))


class HeadsToSequence(ParallelStyle):
    """The projection of what attention made: given by heads, and computed by sequence.

    Args:
        sequence_dim: the dimension of the sequence.
    """

    def __init__(self, *, sequence_dim: int = 1) -> None:
        self.sequence_dim = sequence_dim

    def apply(self, module: torch.nn.Module, name: str, mesh: Mesh, axis: str) -> None:
        """Have the module's forward mark what it takes; its parameters stay as they are."""

        def mark(x: torch.Tensor) -> torch.Tensor:
            x = shard_dimension(x, mesh, -1, (axis,))
            return shard_dimension(x, mesh, self.sequence_dim, (axis,))

        map_inputs(module, lambda given: map_tensors(mark, given))


def sequence_parallel(
    module: torch.nn.Module,
    mesh: Mesh | None = None,
    attention_plan: Mapping[str, ParallelStyle] | None = None,
    *,
    axis: str = "sequence",
    sequence_dim: int = 1,
) -> torch.nn.Module:
    """Shard sequences where a module is called and where it returns, and heads in attention.

    Args:
        module: its parameters stay whole on each device, unless they are marked. The first tensor
            that it is called with has the sequence in `sequence_dim`, and so has each tensor, taken
            or returned, that has this size there.
        mesh: the devices; the global mesh, unless it is given.
        attention_plan: `SequenceToHeads` and `HeadsToSequence` by the names of projections, as
            `parallelize_module` reads names. Unless it is given, the projections are those named
            `q_proj`, `k_proj`, `v_proj` and `o_proj` or `out_proj`, or as in BERT. An empty one is
            for a module that calls `sequence_parallel_attention` itself.
        axis: the axis of the mesh that shards sequences. `data_parallel`, on the same module, may
            shard the batch by another.
        sequence_dim: the dimension of the sequence.

    Returns:
        The module, whose forward marks activations in compiled regions; eager code is as before.

    Raises:
        ShardingError: the mesh has no such axis, no module has one of the names, or the heads are
            not divisible.
    """
    mesh = mesh_or_global(mesh)
    checked_axes(mesh, axis)
    check_heads(module, mesh.shape()[axis])
    if attention_plan is None:
        attention_plan = _plan_of(module, sequence_dim)
    parallelize_module(module, mesh, attention_plan, axis=axis)

    def around(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        shard = _sequence_sharder(mesh, axis, sequence_dim, (args, kwargs))
        args, kwargs = map_tensors(shard, (args, kwargs))
        return map_tensors(shard, forward(*args, **kwargs), in_place=True)

    wrap_forward(module, around)
    return module


def sequence_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,
    mesh: Mesh,
    axis: str = "sequence",
    **kwargs: Any,
) -> torch.Tensor:
    """`scaled_dot_product_attention`, sharded by heads, of tensors that are sharded by sequence.

    Args:
        query: [..., heads, queries, features].
        key: [..., heads, keys, features]. If its heads are fewer and cannot be sharded, it is
            gathered.
        value: as the key.
        *args: as for `torch.nn.functional.scaled_dot_product_attention`.
        mesh: the devices.
        axis: the axis of the mesh that shards sequences, and heads inside.
        **kwargs: as for `torch.nn.functional.scaled_dot_product_attention`.

    Returns:
        [..., heads, queries, features], sharded by queries. Outside of compiled regions nothing is
        sharded.
    """
    devices = mesh.shape()[axis]

    def by_heads(x: torch.Tensor) -> torch.Tensor:
        x = shard_dimension(x, mesh, -2, (axis,))
        if x.dim() < 3 or x.shape[-3] % devices:
            return replicate(x, mesh, axis)
        return shard_dimension(x, mesh, -3, (axis,))

    query, key, value = by_heads(query), by_heads(key), by_heads(value)
    result = scaled_dot_product_attention(query, key, value, *args, **kwargs)
    if result.dim() > 2 and result.shape[-3] % devices == 0:
        result = shard_dimension(result, mesh, -3, (axis,))
    return shard_dimension(result, mesh, -2, (axis,))


def _plan_of(module: torch.nn.Module, sequence_dim: int) -> dict[str, ParallelStyle]:
    heads, few = heads_of(module)
    of_queries = modules_ending_in(module, "q_proj", "attention.self.query")
    of_keys = modules_ending_in(
        module, "k_proj", "v_proj", "attention.self.key", "attention.self.value"
    )
    of_results = modules_ending_in(module, "o_proj", "out_proj", "attention.output.dense")
    if not (of_queries and of_keys and of_results):
        raise ShardingError(
            f"no projections of attention are known by their names in this "
            f"{type(module).__name__}: give sequence_parallel a plan, with SequenceToHeads for "
            "query, key and value and HeadsToSequence for the result"
        )
    plan: dict[str, ParallelStyle] = {}
    plan |= {n: SequenceToHeads(heads, sequence_dim=sequence_dim) for n in of_queries}
    plan |= {n: SequenceToHeads(few, sequence_dim=sequence_dim) for n in of_keys}
    plan |= {n: HeadsToSequence(sequence_dim=sequence_dim) for n in of_results}
    return plan


def _sequence_sharder(
    mesh: Mesh, axis: str, dim: int, call: Any
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that shards the tensors which have the sequence of a call in its dimension."""
    lengths: list[int] = []

    def note(t: torch.Tensor) -> torch.Tensor:
        if t.dim() > dim:
            lengths.append(t.shape[dim])
        return t

    map_tensors(note, call)

    def shard(t: torch.Tensor) -> torch.Tensor:
        is_sequence = bool(lengths) and t.dim() > dim and t.shape[dim] == lengths[0]
        return shard_dimension(t, mesh, dim, (axis,)) if is_sequence else t

    return shard
