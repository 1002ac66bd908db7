"""Choose how the inputs of a graph are sharded: lower it, and search for the best choice."""

import collections
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.graphs.marked import specs_in
from xla_dynamo.graphs.nodes import writes_input
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.lowerings.auto_sharding.costs import Cost, Speeds
from xla_dynamo.lowerings.auto_sharding.search import Found, search
from xla_dynamo.lowerings.builders.functions import operations_within, update_type
from xla_dynamo.programs.lower import ProgramLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import Input
from xla_dynamo.programs.targets import target_of
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.torch_private import invert_perm

log = logging.getLogger("xla_dynamo")
# Times the seconds of one device by their number, which no choice goes below: other meshes are not
# tried then.
_GOOD_ENOUGH = 1.2
_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})


@dataclasses.dataclass(frozen=True, slots=True)
class ChosenShardings:
    """How the inputs of a graph are best sharded.

    Attributes:
        mesh: the devices.
        shardings: of inputs, by number; the others are whole on each device.
        cost: of a call, for each device.
        cost_of_one: of a call on one device alone.
        tried: how many choices were judged.
    """

    mesh: Mesh
    shardings: Mapping[int, Sharding]
    cost: Cost
    cost_of_one: Cost
    tried: int

    def describe(self, shapes: Sequence[Sequence[int]]) -> str:
        """What was chosen, in words, for inputs of these shapes."""
        counts: collections.Counter[str] = collections.Counter()
        for number, sharding in self.shardings.items():
            size = "x".join(map(str, shapes[number]))
            spec = ", ".join("+".join(names) or "None" for names in sharding.axes)
            counts[f"{size} by ({spec})"] += 1
        arrays = "; ".join(f"{n} of {text}" if n > 1 else text for text, n in counts.items())
        held, alone = self.cost.held / 1e6, self.cost_of_one.held / 1e6
        return (
            f"shardings were chosen over {self.mesh} for {len(self.shardings)} of {len(shapes)} "
            f"inputs of a program ({self.tried} choices tried): each device holds {held:.2f} MB "
            f"of {alone:.2f}, and sends {self.cost.sent / 1e6:.2f} MB a call: {arrays}. "
            "xla_dynamo.spmd.sharding_code(model) writes the model's as code"
        )


class _WholeModule(ModuleBuilder):
    """A module that is written for a mesh, and not partitioned."""

    def finish(self) -> None:
        update_type(self.main)


def choose_shardings(
    gm: torch.fx.GraphModule,
    request: Request,
    meshes: Sequence[Mesh],
    platform: str,
    given: Mapping[int, Sharding],
    whole: Sequence[int] = (),
) -> ChosenShardings | None:
    """The best choice over several meshes; None for a graph without products, or with marks.

    Args:
        gm: a graph of static sizes, as `lower` takes it.
        request: as for `lower`.
        meshes: those to choose from, of equally many devices.
        platform: of the devices, "cpu" or another name of PJRT.
        given: the inputs, by number, that are sharded already over one of these meshes.
        whole: inputs, by number, that stay whole.

    Raises:
        UnsupportedOperator, LoweringError: as `lower`.
    """
    if any(True for _ in specs_in(gm)):
        return None
    if given:
        meshes = [next(iter(given.values())).mesh]
    with make_ir_context(), ir.Location.unknown():
        target = target_of(platform, request.options, meshes[0].size())
        builder = _WholeModule(target, request)
        lowering = ProgramLowering(gm, static_values(gm), builder)
        lowering.write()
        names = {op.name for op in operations_within(builder.module)}
        if names.isdisjoint(_PRODUCTS):
            return None
        slots = [slot if isinstance(slot, Input) else None for slot in builder.arguments]
        placeholders = gm.graph.find_nodes(op="placeholder")
        written = {node.args[0] for node in gm.graph.nodes if writes_input(node)}
        changed = [n for n, s in enumerate(slots) if s and placeholders[s.index] in written]
        fixed: dict[int, Any] = {}
        for number, slot in enumerate(slots):
            if slot is not None and slot.index in given:
                fixed[number] = given[slot.index].permuted(slot.layout.permutation).axes
            elif slot is None or slot.index in whole:
                fixed[number] = ((),) * len(builder.block.arguments[number].type.shape)
        speeds = Speeds.of(platform)
        found: list[tuple[Found, Mesh]] = []
        for mesh in meshes:
            try:
                one = search(builder.module, mesh.shape(), fixed, changed, speeds)
            except ir.MLIRError as why:
                log.debug("no shardings are found over %s: %s", mesh, why)
                continue
            found.append((one, mesh))
            if one.seconds < _GOOD_ENOUGH * one.whole.seconds(speeds) / mesh.size():
                break
        if not found:
            return None
        best, mesh = min(found, key=lambda pair: pair[0].seconds)
        shardings = {}
        for number, axes in best.axes.items():
            slot = slots[number]
            assert slot is not None
            permutation = invert_perm(slot.layout.permutation)
            shardings[slot.index] = Sharding(mesh, axes).permuted(permutation)
    return ChosenShardings(mesh, shardings, best.cost, best.whole, sum(f.tried for f, _ in found))
