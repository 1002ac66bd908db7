"""An ATen FX graph of dynamic sizes to one program that is right at every size up to its bounds."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.graphs.call_sizes import TensorSizes
from xla_dynamo.graphs.dynamic_sizes import DynamicSizes, NotBounded
from xla_dynamo.graphs.nodes import run_and_save_rng_state, run_with_rng_state
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.bounded.bound import bound_sizes
from xla_dynamo.lowerings.bounded.dimensions import Dims
from xla_dynamo.lowerings.bounded.extents import Extent, Parts, Refused, Symbols, constant
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.strides import row_major, row_major_order
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.layouts import output_layout
from xla_dynamo.programs.lower import ProgramLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import (
    Constant,
    Donated,
    Input,
    Output,
    Program,
    Slot,
    SymbolValues,
)

Node: TypeAlias = torch.fx.Node


@dataclasses.dataclass(frozen=True, slots=True)
class DynamicResult:
    """An output that is computed at the bounds, and cut to the sizes of the call.

    Attributes:
        atoms: of each dimension, the bounds and the extents of the parts that are merged in it.
        sizes: what the shape and the strides have to be.
    """

    atoms: tuple[tuple[tuple[int, Extent], ...], ...]
    sizes: TensorSizes


@dataclasses.dataclass(frozen=True, slots=True)
class DynamicInput:
    """An input that is padded to the bounds.

    Attributes:
        size, stride: what it is padded to.
        atoms: as in `DynamicResult`.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    atoms: tuple[tuple[tuple[int, Extent], ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DynamicView:
    """An output that is a view of an input, which only the backward reads."""

    input: int
    sizes: TensorSizes
    offset: Extent


@dataclasses.dataclass(frozen=True, slots=True)
class BoundedProgram:
    """A program at the bounds of dynamic sizes, and what a call at smaller sizes needs to know.

    Attributes:
        program: the program. Its last input, behind those of the graph, has the symbols' values.
        padded: the inputs, by number, that are padded to the bounds.
        views: the outputs, by number, that are views of inputs with numbers that are dynamic.
        cut: the outputs, by number, that are cut from what the program computes.
        numbers: the outputs, by number, that are sizes.
    """

    program: Program
    padded: Mapping[int, DynamicInput]
    views: Mapping[int, DynamicView]
    cut: Mapping[int, DynamicResult]
    numbers: Mapping[int, Extent]


def lower_bounded(
    gm: torch.fx.GraphModule,
    dynamic_sizes: DynamicSizes,
    symbols: Symbols,
    variants: Sequence[Mapping[Node, Any]],
    target: Target,
    request: Request,
) -> BoundedProgram:
    """Lower a graph once for each variant, which gives the fake values of its nodes at some sizes.

    Raises:
        NotBounded: the program would not be known to be right at other sizes.
    """
    # It is not known in which order an input's merged sizes were merged: both are tried.
    extents = {e for i in dynamic_sizes.inputs if isinstance(i, TensorSizes) for e in i.shape}
    may_be_merged = any(e.factors(True) != e.factors(False) for e in extents)
    try:
        return _lower(gm, dynamic_sizes, symbols, variants, target, request, number_first=True)
    except NotBounded as refusal:
        if not may_be_merged:
            raise
        try:
            return _lower(gm, dynamic_sizes, symbols, variants, target, request, number_first=False)
        except NotBounded:
            raise refusal from None


def _lower(
    gm: torch.fx.GraphModule,
    dynamic_sizes: DynamicSizes,
    symbols: Symbols,
    variants: Sequence[Mapping[Node, Any]],
    target: Target,
    request: Request,
    number_first: bool,
) -> BoundedProgram:
    with make_ir_context(), ir.Location.unknown():
        count = len(symbols.sizes)
        lowerings = [
            ProgramLowering(gm, values, ModuleBuilder(target, request), count)
            for values in variants
        ]
        with build.for_other_sizes():
            for lowering in lowerings:
                lowering.write()
        first = lowerings[0]
        arguments = first.builder.arguments
        views = _views(lowerings, dynamic_sizes)
        _check_draws(gm)
        check_bindings(lowerings, dynamic_sizes, views)
        try:
            dims_of = bound_sizes(
                [lowering.builder.main for lowering in lowerings],
                symbols,
                next(i for i, slot in enumerate(arguments) if isinstance(slot, SymbolValues)),
                _parts_of_arguments(first, dynamic_sizes, number_first),
                first.env,
            )
        except Refused as refusal:
            raise NotBounded(f"{refusal}{line_of(gm, refusal.location)}") from refusal
        cut, numbers = _outputs(first, dynamic_sizes, symbols, dims_of)
        first.builder.call_kernels()
        program = first.finish(None)
    padded = {}
    bounds = [sizes[0] for sizes in symbols.sizes]
    for node, index in first.input_index.items():
        known = dynamic_sizes.inputs[index]
        if isinstance(known, TensorSizes) and known.is_dynamic:
            size, stride = tuple(variants[0][node].shape), tuple(variants[0][node].stride())
            # Others are copied on their way into the program, whatever their strides.
            is_dense = row_major_order(size, stride) is not None
            parts = [e.factors(number_first) for e in known.shape]
            padded[index] = DynamicInput(
                size,
                stride if is_dense else row_major(size),
                tuple(tuple((part.at(bounds), part) for part in of_one) for of_one in parts),
            )
    return BoundedProgram(program, padded, views, cut, numbers)


def _views(
    lowerings: Sequence[ProgramLowering], dynamic_sizes: DynamicSizes
) -> dict[int, DynamicView]:
    """The outputs for the backward that are views of inputs, with numbers that are dynamic."""
    first, *others = lowerings
    found = {}
    for index in first.builder.request.results_for_backward:
        node, output = first.graph_results[index], first.outputs[index]
        if output.input is None or all(other.outputs[index] == output for other in others):
            continue
        fake = node.meta["val"]
        (root,) = (n for n, number in first.input_index.items() if number == output.input)
        start = dynamic_sizes.extent(node, root.meta["val"].storage_offset())
        offset = dynamic_sizes.extent(node, fake.storage_offset()).plus(start, -1)
        alike = fake.dtype is root.meta["val"].dtype and not (fake.is_conj() or fake.is_neg())
        if alike:
            found[index] = DynamicView(output.input, dynamic_sizes.of_tensor(node, fake), offset)
    return found


def line_of(gm: torch.fx.GraphModule, location: str) -> str:
    """The user's line behind an operation, whose location begins with the name of its node."""
    by_name = {node.name: node for node in gm.graph.nodes}
    name = location.removeprefix('loc("').partition('"')[0]
    return describe(by_name[name]) if name in by_name else ""


def check_bindings(
    lowerings: Sequence[ProgramLowering], dynamic_sizes: DynamicSizes, views: Collection[int] = ()
) -> None:
    """Raise NotBounded unless the programs bind to a call in one way, but for sizes."""
    first = lowerings[0]
    if first.effects:
        raise NotBounded("it has effects behind the program")
    arguments = first.builder.arguments
    changed = [slot.index for slot in arguments if isinstance(slot, Donated)]
    changed += [mutation.index for mutation in first.mutations]
    for index in changed:
        known = dynamic_sizes.inputs[index]
        if isinstance(known, TensorSizes) and known.is_dynamic:
            raise NotBounded(f"input {index}, of a dynamic size, changes in place")
    for other in lowerings[1:]:
        alike = (
            list(map(_comparable, arguments)) == list(map(_comparable, other.builder.arguments))
            and [slot.on_host for slot in first.result_slots]
            == [slot.on_host for slot in other.result_slots]
            and first.mutations == other.mutations
            and all(
                i in views or _without_number(a) == _without_number(b)
                for i, (a, b) in enumerate(zip(first.outputs, other.outputs, strict=True))
            )
        )
        if not alike:
            raise NotBounded("inputs, outputs or views of them are bound in another way")


def _comparable(slot: Slot) -> Any:
    """What two lowerings of a graph have in common if a slot is the same to both."""
    return id(slot.tensor) if isinstance(slot, Constant) else slot


def _check_draws(gm: torch.fx.GraphModule) -> None:
    """Raise NotBounded if a backward draws again what its forward drew.

    The numbers depend on the bounds, and the two may have different ones.
    """
    for node in gm.graph.nodes:
        if node.target in (run_and_save_rng_state, run_with_rng_state):
            raise NotBounded(f"it draws random numbers again{describe(node)}")


def _without_number(output: Output) -> Output:
    is_size = isinstance(output.number, int) and not isinstance(output.number, bool)
    return dataclasses.replace(output, number=None) if is_size else output


def _parts_of_arguments(
    lowering: ProgramLowering, dynamic_sizes: DynamicSizes, number_first: bool
) -> list[Sequence[Parts] | None]:
    """The parts of the dimensions of each argument of the program."""
    found: list[Sequence[Parts] | None] = []
    for slot in lowering.builder.arguments:
        parts = None
        if isinstance(slot, Input) and not isinstance(slot, SymbolValues):
            known = dynamic_sizes.inputs[slot.index]
            if isinstance(known, TensorSizes) and known.is_dynamic:
                parts = [known.shape[d].factors(number_first) for d in slot.layout.permutation]
        found.append(parts)
    return found


def _outputs(
    lowering: ProgramLowering, dynamic_sizes: DynamicSizes, symbols: Symbols, dims_of: Any
) -> tuple[dict[int, DynamicResult], dict[int, Extent]]:
    """The outputs that are cut, and those that are sizes, by number.

    Raises:
        NotBounded: what the program computes is not what the graph promises.
    """
    cut: dict[int, DynamicResult] = {}
    numbers: dict[int, Extent] = {}
    for index, (node, output) in enumerate(
        zip(lowering.graph_results, lowering.outputs, strict=True)
    ):
        fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if isinstance(fake, torch.SymInt):
            numbers[index] = dynamic_sizes.extent(node, fake)
        if output.result is None or not isinstance(fake, torch.Tensor):
            continue
        sizes = dynamic_sizes.of_tensor(node, fake)
        atoms = _atoms(dims_of(lowering.env[node]), sizes, symbols)
        if atoms is None:
            raise NotBounded(f"the sizes of a result are not followed{describe(node)}")
        if not sizes.is_dynamic:
            continue
        layout = output_layout(lowering.fake_values[node])
        if layout.overlapping or output.view is not None:
            raise NotBounded(f"a result of a dynamic size shares its memory{describe(node)}")
        cut[index] = DynamicResult(atoms, sizes)
    return cut, numbers


def _atoms(
    dims: Dims, sizes: TensorSizes, symbols: Symbols
) -> tuple[tuple[tuple[int, Extent], ...], ...] | None:
    """How a result is cut; None unless its dimensions are those that the graph promises."""
    if len(dims) != len(sizes.shape):
        return None
    found = []
    for dim, wanted in zip(dims, sizes.shape, strict=True):
        if len(dim) == 1 and dim[0].uniform:
            parts = [(dim[0].sizes[0], wanted)]
        else:
            extents = [
                a.extent or (symbols.extent(a.sizes) if a.uniform else constant(a.sizes[0]))
                for a in dim
            ]
            if None in extents:
                return None
            parts = [(a.sizes[0], e) for a, e in zip(dim, extents, strict=True) if e is not None]
        product = constant(1)
        for _, extent in parts:
            product = product.times(extent)
        if product != wanted:
            return None
        found.append(tuple(parts))
    return tuple(found)
