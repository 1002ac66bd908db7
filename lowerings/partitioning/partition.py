"""Partition a program over the devices of a mesh: what each device computes, as StableHLO.

Shardy, which XLA's partitioner begins with too, is run here: it finds how each value is sharded,
and inserts collectives where an operand must be sharded otherwise. Then each operation gets the
shapes of shards. What is left is a program of one device among others. So all passes, the calls of
libraries, and the plans are for it what they are for any program, and its collectives can be
combined. What this does not know is left to XLA's partitioner.
"""

import dataclasses
import logging

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from xla_dynamo.lowerings.builders.functions import (
    bytecode_of,
    main_of,
    operations_within,
    remove_attributes,
    update_type,
)
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE, named
from xla_dynamo.lowerings.builders.shardings import (
    SHARDING,
    axes_of_attribute,
    is_end_of_region,
    mesh_axes,
    sharding_attribute,
    shardings_of,
)
from xla_dynamo.lowerings.builders.values import Value, dtype_of, rank_of, shape_of
from xla_dynamo.lowerings.partitioning import elementwise_calls
from xla_dynamo.lowerings.partitioning.local_operations import convert
from xla_dynamo.lowerings.partitioning.propagation import insert_collectives, propagate
from xla_dynamo.lowerings.partitioning.shards import Axes, NotKnown, Shards, known_axes

log = logging.getLogger("xla_dynamo")

# Operations whose operands XLA's partitioner need not gather.
_EXCHANGED = named(
    "concatenate dynamic_slice dynamic_update_slice gather pad reverse scatter slice sort"
)
_THROUGH = ELEMENTWISE | named("broadcast_in_dim reshape transpose")
# Operations with others inside that would have to be partitioned too, and functions.
_OTHERS = named("case if while") | {"func.call"}


@dataclasses.dataclass(frozen=True, slots=True)
class Partitioned:
    """What each device computes.

    Attributes:
        module: the module, whose `main` has shards for arguments and results.
        results: for each result the axes of the mesh that shard each dimension.
    """

    module: ir.Module
    results: tuple[Axes, ...]


def partition(module: ir.Module) -> Partitioned | None:
    """What each device of the module's mesh computes; None where XLA's partitioner is to find it.

    Assumes that `main` has the shardings of its arguments as attributes. The module stays as it is.
    The devices are replicas, in the order of the mesh: in groups of collectives, and for
    `replica_id`.
    """
    if any(op.name in _OTHERS or is_end_of_region(op) for op in operations_within(module)):
        return None
    local = ir.Module.parse(bytecode_of(module))
    try:
        propagate(local)
        if is_fragile := any(map(_is_fragile, operations_within(local))):
            _keep_uneven_values_whole(local)
        insert_collectives(local)
        if not is_fragile:
            _leave_exchanges(local)
        results = _convert(local, is_fragile)
        for op in list(operations_within(local)):
            elementwise_calls.unwrap(op)
        local.operation.verify()
    except (ir.MLIRError, NotKnown) as why:
        log.debug("XLA partitions a program: %s", why)
        return None
    return Partitioned(local, results)


def _leave_exchanges(module: ir.Module) -> None:
    """Raise NotKnown if values are gathered whose shards XLA's partitioner would exchange.

    It moves the ends of shards where a computed value is cut or joined along a sharded dimension.
    """
    for op in operations_within(module):
        if op.name != "sdy.all_gather" or isinstance(op.operands[0].owner, ir.Block):
            continue
        if users := _readers(op.results[0]) & _EXCHANGED:
            raise NotKnown(f"gathered for {users}")


def _readers(value: Value) -> set[str]:
    """The names of the operations that read a value, or what is elementwise or a view of it."""
    found: set[str] = set()
    pending, known = [value], {value}
    while pending:
        for use in pending.pop().uses:
            reader = use.owner.operation if isinstance(use.owner, ir.OpView) else use.owner
            found.add(reader.name)
            if reader.name in _THROUGH:
                new = [result for result in reader.results if result not in known]
                known.update(new)
                pending += new
    return found


def _is_fragile(op: ir.Operation) -> bool:
    """Whether XLA's partitioner may end the process at shards of several sizes."""
    name = op.name
    if name == "stablehlo.pad":
        return not dtype_of(op.results[0]).is_floating_point
    windows = name in ("stablehlo.reduce_window", "stablehlo.select_and_scatter")
    return windows or (name == "stablehlo.reduce" and len(op.results) > 1)


def _keep_uneven_values_whole(module: ir.Module) -> None:
    """Take axes from dimensions that they do not shard evenly."""
    shards = Shards(mesh_axes(module))
    for op in operations_within(module):
        given = [axes_of_attribute(sharding) for sharding in shardings_of(op)]
        if SHARDING not in op.attributes or any(axes is None for axes in given):
            continue
        even = [
            [
                names if n % shards.count(names) == 0 else ()
                for n, names in zip(shape_of(result), axes or (), strict=True)
            ]
            for result, axes in zip(op.results, given, strict=True)
        ]
        shardings = sdy.TensorShardingPerValueAttr.get(list(map(sharding_attribute, even)))
        op.attributes[SHARDING] = shardings


def _convert(module: ir.Module, gathers: bool) -> tuple[Axes, ...]:
    """Let a module compute with shards; returns the axes that shard each result.

    Args:
        module: the module.
        gathers: whether a device may gather whole operands.

    Raises:
        NotKnown: an operation is not known to do that.
    """
    main, shards = main_of(module), Shards(mesh_axes(module), gathers)
    block = main.entry_block
    *operations, last = [op.operation for op in block.operations]
    for argument, given in zip(block.arguments, ir.ArrayAttr(main.arg_attrs), strict=True):
        shards.shard(argument, _axes(given, argument))
    for op in operations:
        with ir.InsertionPoint(op), op.location:
            convert(shards, op)
    found = tuple(map(shards.axes, last.operands))
    if any(x in shards.partial for x in last.operands):
        raise NotKnown("a result of which each device has a part")
    if "res_attrs" in main.attributes:
        given = ir.ArrayAttr(main.attributes["res_attrs"])
        promised = [_axes(a, x) for a, x in zip(given, last.operands, strict=True)]
        if promised != list(found):
            raise NotKnown(f"results over {found}, and not {promised}")
    remove_attributes(main)
    for op in [op.operation for op in module.body.operations]:
        if op.name == "sdy.mesh":
            op.erase()
    update_type(main)
    return found


def _axes(attributes: ir.Attribute, value: Value) -> Axes:
    given = ir.DictAttr(attributes)
    return known_axes(given[SHARDING]) if SHARDING in given else ((),) * rank_of(value)
