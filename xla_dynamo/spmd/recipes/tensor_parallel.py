"""Tensor parallel: the layers of a model sharded over one axis of a mesh, by a plan of names."""

import fnmatch
from collections.abc import Iterator, Mapping

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.recipes.axes import checked_axes, mesh_or_global
from xla_dynamo.spmd.recipes.plans import plan_of
from xla_dynamo.spmd.recipes.styles import ParallelStyle


def parallelize_module(
    module: torch.nn.Module,
    mesh: Mesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    axis: str = "model",
) -> torch.nn.Module:
    """Shard the layers of a module over one axis, as `torch.distributed.tensor.parallel` does.

        parallelize_module(model, mesh, {
            "layers.*.attention.q_proj": ColwiseParallel(),
            "layers.*.attention.o_proj": RowwiseParallel(),
        })

    Args:
        module: its parameters are marked, and the forwards of its layers mark activations in
            compiled regions. It stays the module it is, and eager code is as before.
        mesh: the devices; the global mesh, unless it is given.
        parallelize_plan: a style for the module itself, or styles by the names of its submodules.
            In a name, `*` stands for one part between dots, or some of its letters. Without a plan
            it is that of `plan_of(module, ...)`, which knows transformers' models.
        axis: the axis of the mesh that shards the layers. The others are free for the batch, or
            for `SpmdFullyShardedDataParallel` around the result.

    Returns:
        The module.

    Raises:
        ShardingError: no module has one of the names, a parameter is not divisible, a style is not
            for modules of this kind, or there is no plan for the model.
    """
    mesh = mesh_or_global(mesh)
    checked_axes(mesh, axis)
    plan = parallelize_plan
    if plan is None:
        plan = plan_of(module, mesh.shape()[axis])
    if isinstance(plan, ParallelStyle):
        plan.apply(module, type(module).__name__, mesh, axis)
        return module
    found = [(name, each, style) for pattern, style in plan.items()
             for name, each in _matching(module, pattern)]  # fmt: skip
    for name, each, style in found:  # only when all names are known, so that none is half sharded
        style.apply(each, name, mesh, axis)
    return module


def _matching(module: torch.nn.Module, pattern: str) -> Iterator[tuple[str, torch.nn.Module]]:
    parts, found = pattern.split("."), False
    for name, each in module.named_modules():
        given = name.split(".")
        if len(given) == len(parts) and all(map(fnmatch.fnmatchcase, given, parts)):
            found = True
            yield name, each
    if not found:
        some = ", ".join(list(dict(module.named_modules()))[1:6])
        raise ShardingError(
            f"no module is named {pattern!r}, as the plan has it, in this "
            f"{type(module).__name__}, whose modules are {some}, ..."
        )
