"""Automatic shardings, as `use_spmd(auto=True)` asks for: the meshes to choose from, and reports.

A program that has products chooses when it first comes: over which of the meshes, and how each of
its inputs that has no sharding is sharded. `lowerings.auto_sharding` searches by what a call costs
each device. What has a sharding keeps it, so later programs follow the first.
"""

import itertools
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.errors import OptionError
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import topology
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.spmd.marking import sharding_of
from xla_dynamo.spmd.meshes import get_global_mesh, set_global_mesh
from xla_dynamo.switches.pytorch_xla import AUTO_SPMD_MESH

log = logging.getLogger("xla_dynamo")
_NAMES = ("data", "model")


class _Reports:
    def __init__(self) -> None:
        self.texts: list[str] = []


_reports = kept(_Reports)


def meshes_to_choose_from() -> list[Mesh]:
    """The global mesh, one of the shape that XLA_AUTO_SPMD_MESH says, or all of up to two axes.

    Raises:
        OptionError: XLA_AUTO_SPMD_MESH is no shape of all devices.
    """
    if (mesh := get_global_mesh()) is not None:
        return [mesh]
    count = topology.global_runtime_device_count()
    if given := AUTO_SPMD_MESH.get():
        sizes = [int(n) for n in given.split(",") if n.strip().isdecimal()]
        if len(sizes) != given.count(",") + 1 or math.prod(sizes) != count:
            raise OptionError(
                f"{AUTO_SPMD_MESH.name}={given!r} is the shape of no mesh over {count} devices: "
                f'give sizes whose product is {count}, as in "{count},1"'
            )
        names = _NAMES if len(sizes) <= len(_NAMES) else [f"axis_{i}" for i in range(len(sizes))]
        return [Mesh(range(count), sizes, names[: len(sizes)])]
    shapes = [(count,)] + [(count // n, n) for n in range(2, count) if count % n == 0]
    return [Mesh(range(count), shape, _NAMES[: len(shape)]) for shape in shapes]


def auto_policy(mod_name: str, mod: torch.nn.Module, mesh: Any) -> None:
    """A `partition_fn` of `xla_distribute_module` that leaves all to automatic shardings.

    Args:
        mod_name: the name of a submodule.
        mod: the submodule, whose parameters get no mark here.
        mesh: the DeviceMesh or `Mesh` that shardings are chosen for.
    """
    from xla_dynamo.spmd.placements import mesh_from_device_mesh  # not before it is needed

    set_global_mesh(mesh if isinstance(mesh, Mesh) else mesh_from_device_mesh(mesh))
    topology.use_spmd(auto=True)


def report(text: str) -> None:
    """Tell what was chosen."""
    _reports.texts.append(text)
    log.warning("%s", text)


def auto_sharding_reports() -> Sequence[str]:
    """What was chosen so far, a text for each program that chose."""
    return tuple(_reports.texts)


def sharding_code(model: torch.nn.Module, *inputs: torch.Tensor) -> str:
    """Python that marks a model as it is marked now: what automatic shardings found, to keep.

    Args:
        model: its parameters and buffers are asked for their shardings.
        inputs: tensors of a batch, which are asked, too.

    Returns:
        The source of a function `shard(model)`, or `shard(model, *inputs)`.

    Raises:
        OptionError: nothing is sharded.
    """
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    found = {name: s for name, t in named if (s := sharding_of(t)) is not None and any(s.axes)}
    of_inputs = {n: s for n, t in enumerate(inputs) if (s := sharding_of(t)) is not None}
    meshes = [s.mesh for s in (*found.values(), *of_inputs.values())]
    if not meshes:
        raise OptionError("nothing of the model is sharded: call it first, or mark its parameters")
    mesh = meshes[0]
    lines = [
        "from xla_dynamo import spmd",
        "",
        f"MESH = spmd.Mesh({list(mesh.ids)}, {mesh.mesh_shape}, {mesh.axis_names})",
        "SPECS = {",
        *(f"    {name!r}: {_spec(s)!r}," for name, s in found.items()),
        "}",
        "",
        "",
        f"def shard(model{', *inputs' if inputs else ''}):",
        "    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}",
        "    for name, spec in SPECS.items():",
        "        spmd.mark_sharding(tensors[name], MESH, spec)",
    ]
    for number, sharding in of_inputs.items():
        lines.append(f"    spmd.mark_sharding(inputs[{number}], MESH, {_spec(sharding)!r})")
    return "\n".join(lines) + "\n"


def _spec(sharding: Sharding) -> tuple[Any, ...]:
    short = [names[0] if len(names) == 1 else names for names in sharding.axes]
    return tuple(names or None for names in short)
