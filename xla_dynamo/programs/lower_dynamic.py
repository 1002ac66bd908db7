"""An ATen FX graph of dynamic sizes to one program for all sizes, of types as `tensor<?x8xf32>`."""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.graphs.call_sizes import TensorSizes
from xla_dynamo.graphs.dynamic_sizes import DynamicSizes, NotBounded
from xla_dynamo.graphs.request import Request
from xla_dynamo.lowerings.bounded.extents import Extent, Refused, Symbols
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.passes.composites import outline_composites
from xla_dynamo.lowerings.passes.contraction_barriers import insert_barriers
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.symbolic.dynamic_module import make_dynamic
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower_bounded import check_bindings, line_of
from xla_dynamo.programs.lower_exported import ExportedLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import Input, Program

Node: TypeAlias = torch.fx.Node


class DynamicLowering(ExportedLowering):
    """A graph on its way into a program of dynamic sizes.

    The passes know sizes, and so do not run; the barriers stand already.

    Attributes:
        notes: what inserting the barriers has noted.
    """

    notes = Notes()

    def run_passes(self) -> Notes:
        """None are for dynamic sizes; make the marked regions composites."""
        outline_composites(self.builder.module)
        return self.notes


def lower_dynamic(
    gm: torch.fx.GraphModule,
    sizes: DynamicSizes,
    at: Sequence[Sequence[int]],
    ends: Sequence[tuple[int, int | None]],
    target: Target,
    request: Request,
    custom_ops: Collection[str] = (),
) -> Program:
    """Lower a graph at several sizes, and solve what differs as polynomials of the symbols.

    Args:
        gm: the graph.
        sizes: its symbols.
        at: the values of the symbols in each of the variants.
        ends: the least and the largest value of each symbol that the program is for.
        target: as for `lower`.
        request: as for `lower`.
        custom_ops: as for `lower_exported`.

    Raises:
        NotBounded: the program is not known at other sizes; the message names the operation and
            the user's line.
    """
    with make_ir_context(), ir.Location.unknown():
        with build.for_other_sizes():
            main, *variants = [
                _lowered(gm, sizes, values, ModuleBuilder(target, request), custom_ops)
                for values in (at[0], *at)
            ]
        if main.builder.uses_rng:
            raise NotBounded("it draws random numbers, as many as the sizes say")
        check_bindings([main, *variants], sizes)
        try:
            make_dynamic(
                main.builder.main,
                [variant.builder.main for variant in variants],
                Symbols(list(zip(*at, strict=True)), [low for low, _ in ends], sizes.extents()),
                [high for _, high in ends],
                _extents(main, sizes),
            )
        except Refused as refusal:
            raise NotBounded(f"{refusal}{line_of(gm, refusal.location)}") from refusal
        return main.finish(None)


def _lowered(
    gm: torch.fx.GraphModule,
    sizes: DynamicSizes,
    values: Sequence[int],
    builder: ModuleBuilder,
    custom_ops: Collection[str],
) -> DynamicLowering:
    lowering = DynamicLowering(gm, sizes.fake_values(gm, values), builder, custom_ops)
    lowering.write()
    lowering.notes = insert_barriers(builder.module, builder.target) or Notes()
    return lowering


def _extents(lowering: DynamicLowering, sizes: DynamicSizes) -> list[Sequence[Extent] | None]:
    """The extents of the dimensions of each argument of the program."""
    found: list[Sequence[Extent] | None] = []
    for slot in lowering.builder.arguments:
        known = sizes.inputs[slot.index] if isinstance(slot, Input) else None
        found.append(known.shape if isinstance(known, TensorSizes) and known.is_dynamic else None)
    arguments = len(lowering.builder.block.arguments)  # behind the slots, that of the barriers
    return found + [None] * (arguments - len(found))
