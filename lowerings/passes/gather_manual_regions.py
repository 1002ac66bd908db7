"""Gather the operations of manual regions into computations that each device does by itself.

Lowering writes a manual region as operations among the others: an entry makes each device's shard
of a value, operators compute with shards, and an exit makes a value of the shards. The partitioner
of XLA wants one operation, `sdy.manual_computation`, around all that computes with shards.

Regions have levels. A region that depends on a result of another is a level above it, as the
gradient of a region is above that region. All operations of a level go into one computation. A
shard that a later level reads leaves its computation as a value that has the shards of all devices,
one behind the other along the first dimension, and enters the later one so: nothing moves.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import ShardingError
from xla_dynamo.lowerings.builders.functions import (
    has_uses,
    main_of,
    nested_operations,
    operations_within,
    values_read,
)
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE, VIEWS, call_target, named
from xla_dynamo.lowerings.builders.shapes import reshape
from xla_dynamo.lowerings.builders.shardings import (
    ENTRY,
    EXIT,
    REGION_SHARDING,
    is_end_of_region,
    mesh_axes,
    sharding_attribute,
)
from xla_dynamo.lowerings.builders.values import Value, defining_operation, rank_of, shape_of
from xla_dynamo.lowerings.target import Target

_COLLECTIVES = named(
    "all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter"
)
# What is written once more in a computation, if it depends on no argument.
_CONSTANT = ELEMENTWISE | VIEWS | named("concatenate constant iota pad")


def gather_manual_regions(module: ir.Module, target: Target) -> None:
    """Make an `sdy.manual_computation` of each level of the manual regions of a block.

    Assumes that the module has a mesh, and calls for the ends of regions. Leaves modules without
    regions as they are, and those that processes run beside each other. The channels of collectives
    get numbers.

    Raises:
        ShardingError: a shard leaves a region other than by an exit, or regions are nested.
    """
    if target.replicas:  # whose collectives are of processes, each with values of its own
        return
    found = list(operations_within(module))
    collectives = [op for op in found if op.name in _COLLECTIVES]
    for number, op in enumerate(collectives, 1):
        op.attributes["channel_handle"] = hlo.ChannelHandle.get(number, 1)
    if collectives or any(map(is_end_of_region, found)):
        _gather(main_of(module).entry_block, mesh_axes(module))


def _gather(block: ir.Block, axes: dict[str, int]) -> None:
    regions = _Regions(axes)
    for view in block.operations:
        op = view.operation
        within = nested_operations(op)
        has_ends = any(map(is_end_of_region, within))
        if has_ends:
            for inner in (b for region in op.regions for b in region.blocks):
                _gather(inner, axes)
        regions.add(op, has_ends, any(inner.name in _COLLECTIVES for inner in [op, *within]))
    if regions.entries or regions.inside or regions.exits:
        regions.write()


class _Regions:
    """The manual regions of a block.

    Attributes:
        axes: the axes of the mesh, with their sizes.
        entries: by the shard that it makes, each entry.
        inside: by level, the operations that compute with shards.
        exits: by level, the exits.
        outside: by level, the other operations: those that need the results of the level before.
        last: the operation that ends the block.
    """

    def __init__(self, axes: dict[str, int]) -> None:
        self.axes = axes
        self.entries: dict[Value, ir.Operation] = {}
        self.inside: dict[int, list[ir.Operation]] = collections.defaultdict(list)
        self.exits: dict[int, list[ir.Operation]] = collections.defaultdict(list)
        self.outside: dict[int, list[ir.Operation]] = collections.defaultdict(list)
        self.last: ir.Operation | None = None
        self._levels: dict[Value, int] = {}  # of every value of the block, 0 if it is not there
        self._shards: dict[Value, int] = {}  # the level of the operation that computes it
        self._later: dict[int, dict[Value, None]] = collections.defaultdict(dict)
        self._carried: dict[Value, Value] = {}

    # --- sort the operations of a block ------------------------------------------------------

    def add(self, op: ir.Operation, has_ends: bool, has_collectives: bool) -> None:
        """Take the next operation of the block."""
        read = values_read(op)
        level = max((self._levels.get(v, 0) for v in read), default=0)
        reads_shards = any(v in self.entries or v in self._shards for v in read)
        call = call_target(op)
        if reads_shards and (has_ends or call == ENTRY):
            raise ShardingError(f"a manual region has another inside it, {_where(op)}")
        if call == ENTRY:
            self.entries[op.results[0]] = op
        elif call == EXIT:
            self.exits[level].append(op)
            self._note_readers(read, level)
            level += 1
        elif reads_shards or (has_collectives and not has_ends):
            if op.name.endswith("return"):
                raise ShardingError(
                    "a value of a manual region, of which each device has its own, leaves the "
                    "program: leave the region by shard_to_full (disable_manual_sharding) first"
                )
            self.inside[level].append(op)
            self._note_readers(read, level)
            self._shards.update(dict.fromkeys(op.results, level))
        elif op.name.endswith("return"):
            self.last = op
        else:
            self.outside[level].append(op)
        self._levels.update(dict.fromkeys(op.results, level))

    def _note_readers(self, read: Iterable[Value], level: int) -> None:
        for value in read:
            if self._shards.get(value, level) < level:
                self._later[self._shards[value]][value] = None

    # --- write them anew ---------------------------------------------------------------------

    def write(self) -> None:
        """Write the operations of one level after another, each with its computation."""
        assert self.last is not None
        for level in range(max([*self.inside, *self.exits, *self.outside]) + 1):
            for op in self.outside[level]:
                op.move_before(self.last)
            if self.exits[level] or self._later[level]:
                self._compute(level)
        for ops in (*reversed(self.inside.values()), self.entries.values()):
            for op in reversed(list(ops)):
                if not has_uses(op) and op.block == self.last.block:
                    op.erase()

    def _compute(self, level: int) -> None:
        """Write the computation of a level, and replace the exits by its results."""
        assert self.last is not None
        inside, exits, later = self.inside[level], self.exits[level], [*self._later[level]]
        own = {result for op in inside for result in op.results}
        read = dict.fromkeys(v for op in (*inside, *exits) for v in values_read(op))
        given = [v for v in read if v not in own and not _is_constant(v)]
        operands = [self._operand(v) for v in given]
        results = [(op.results[0].type, op.attributes[REGION_SHARDING]) for op in exits]
        results += [(self._carried_type(v), self._all_axes(max(rank_of(v), 1))) for v in later]
        with ir.InsertionPoint(self.last), (inside or exits)[0].location:
            computation = sdy.ManualComputationOp(
                [type_ for type_, _ in results],
                [value for value, _, _ in operands],
                sdy.TensorShardingPerValueAttr.get([s for _, s, _ in operands]),
                sdy.TensorShardingPerValueAttr.get([s for _, s in results]),
                sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in self.axes]),
            )
        body = computation.regions[0].blocks.append(*(type_ for _, _, type_ in operands))
        self._fill(body, given, read, inside, [op.operands[0] for op in exits], later)
        made = list(computation.results)
        for op, result in zip(exits, made, strict=False):
            op.results[0].replace_all_uses_with(result)
            op.erase()
        self._carried.update(zip(later, made[len(exits) :], strict=True))

    def _fill(
        self,
        body: ir.Block,
        given: Sequence[Value],
        read: Iterable[Value],
        inside: Sequence[ir.Operation],
        leaving: Sequence[Value],
        later: Sequence[Value],
    ) -> None:
        """Move operations into the body of a computation, whose arguments are the given values."""
        known: dict[Value, Value] = {}
        with ir.InsertionPoint(body):
            for value, argument in zip(given, body.arguments, strict=True):
                known[value] = reshape(argument, shape_of(value))
            for value in read:
                if _is_constant(value):
                    _copy(value, known)
        for op in inside:
            for each in (op, *nested_operations(op)):
                for number, value in enumerate(each.operands):
                    if value in known:
                        each.operands[number] = known[value]
            body.append(op)
        with ir.InsertionPoint(body):
            returned = [known.get(v, v) for v in leaving]
            returned += [reshape(v, shape_of(v) or (1,)) for v in later]
            sdy.ReturnOp(returned)

    def _operand(self, value: Value) -> tuple[Value, ir.Attribute, ir.Type]:
        """The operand for a value that a computation reads, its sharding, and its shard's type."""
        if (entry := self.entries.get(value)) is not None:
            return entry.operands[0], entry.attributes[REGION_SHARDING], value.type
        if value in self._shards:
            shape = shape_of(value) or (1,)
            shard = ir.RankedTensorType.get(shape, value.type.element_type)
            return self._carried[value], self._all_axes(len(shape)), shard
        return value, sharding_attribute([()] * rank_of(value)), value.type

    def _carried_type(self, shard: Value) -> ir.Type:
        """The type of the shards of all devices, one behind the other."""
        count = 1
        for size in self.axes.values():
            count *= size
        first, *others = shape_of(shard) or (1,)
        return ir.RankedTensorType.get([first * count, *others], shard.type.element_type)

    def _all_axes(self, rank: int) -> ir.Attribute:
        return sharding_attribute([tuple(self.axes), *[()] * (rank - 1)])


def _is_constant(value: Value, depth: int = 8) -> bool:
    """Whether a value is made of constants alone, by few operations that may be written again."""
    op = defining_operation(value)
    if op is None or not depth or op.name not in _CONSTANT:
        return False
    return all(_is_constant(operand, depth - 1) for operand in op.operands)


def _copy(value: Value, known: dict[Value, Value]) -> None:
    """Write the operations that make a constant at the insertion point."""
    if value in known:
        return
    op: Any = defining_operation(value)
    for operand in op.operands:
        _copy(operand, known)
    clone = op.clone()
    for number, operand in enumerate(op.operands):
        clone.operands[number] = known[operand]
    known[value] = clone.results[0]


def _where(op: ir.Operation) -> str:
    return f"at {op.location}"
