"""What a program costs each device of a mesh, once Shardy has propagated its shardings.

Counted are the bytes that a device holds as arguments, those that it sends by the ring algorithms,
those that its operations write, and the operations of its products. Seconds are their sum over
what a device does in one, nothing of it overlapped: they rank choices and are no prediction.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.functions import main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import named
from xla_dynamo.lowerings.builders.shardings import SHARDING, mesh_axes, shardings_of
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of

# What writes nothing: values that are known, and collectives' own results are counted as sent.
_FREE = named("constant iota broadcast_in_dim reshape") | {"sdy.constant", "func.return"}

# An axis in a list, or a part of one: "data", or "data":(2)4.
_AXIS = re.compile(r'"([^"]*)"(?::\(\d+\)(\d+))?')


@dataclasses.dataclass(frozen=True, slots=True)
class Speeds:
    """What a device does in a second.

    Attributes:
        operations: floating-point operations of products.
        memory: bytes that it writes to its memory.
        links: bytes that it sends to other devices.
    """

    operations: float
    memory: float
    links: float

    @classmethod
    def of(cls, platform: str) -> "Speeds":
        """The order of magnitude of a platform's devices, of which the ratios count."""
        return _SPEEDS.get(platform, _SPEEDS["cuda"])


_SPEEDS = {
    "cpu": Speeds(operations=5e10, memory=1e10, links=5e9),
    "cuda": Speeds(operations=2e14, memory=2e12, links=3e11),
    "tpu": Speeds(operations=2e14, memory=1e12, links=1e11),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What a call of a program costs each device.

    Attributes:
        held: bytes of the arguments.
        sent: bytes that the collectives send.
        written: bytes that operations write.
        operations: floating-point operations of products and convolutions.
    """

    held: int
    sent: float
    written: int
    operations: float

    def seconds(self, speeds: Speeds) -> float:
        """How long a call takes where nothing overlaps."""
        memory = (self.held + self.written) / speeds.memory
        return self.operations / speeds.operations + memory + self.sent / speeds.links


def cost_of(module: ir.Module) -> Cost:
    """The cost of a module that `insert_collectives` has run on.

    What runs in a loop is counted once, as is what one branch of several computes.
    """
    main, sizes = main_of(module), mesh_axes(module)
    local: dict[Value, tuple[int, ...]] = {}
    held, sent, written, operations = 0, 0.0, 0, 0.0
    attributes = map(ir.DictAttr, ir.ArrayAttr(main.arg_attrs))
    for argument, given in zip(main.entry_block.arguments, attributes, strict=True):
        local[argument] = shape_of(argument)
        if SHARDING in given:
            local[argument] = _shape_of_shard(argument, given[SHARDING], sizes)
        held += _bytes(argument, local[argument])
    for op in _with_bodies(operations_of(main)):
        shardings = shardings_of(op) or [None] * len(op.results)
        for result, sharding in zip(op.results, shardings, strict=True):
            local[result] = _shape_of_shard(result, sharding, sizes)
            if op.name not in _FREE:
                written += _bytes(result, local[result])
        if op.name in _SENDERS:
            sent += _SENDERS[op.name](op, local, sizes)
        elif op.name == "stablehlo.dot_general":
            operations += _operations_of_product(op, local)
        elif op.name == "stablehlo.convolution":
            operations += _operations_of_convolution(op, local)
    return Cost(held, sent, written, operations)


def _with_bodies(operations: Sequence[ir.Operation]) -> Sequence[ir.Operation]:
    """Operations, with those inside loops and branches."""
    found: list[ir.Operation] = []
    for op in operations:
        found.append(op)
        if op.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
            bodies = [block for region in op.regions for block in region.blocks]
            found += _with_bodies([inner.operation for b in bodies for inner in b.operations])
    return found


def _shape_of_shard(
    value: Value, sharding: ir.Attribute | None, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    if not isinstance(value.type, ir.RankedTensorType):
        return ()
    if sharding is None:
        return shape_of(value)
    of_dims = map(sdy.DimensionShardingAttr, sdy.TensorShardingAttr(sharding).dimension_shardings)
    counts = [math.prod(_size(axis, sizes) for axis in dim.axes) for dim in of_dims]
    return tuple(-(-n // count) for n, count in zip(shape_of(value), counts, strict=True))


def _size(axis: ir.Attribute, sizes: Mapping[str, int]) -> int:
    """The devices along an axis, or along a part of one."""
    reference = sdy.AxisRefAttr(axis)
    part = reference.sub_axis_info
    return sizes[reference.name] if part is None else sdy.SubAxisInfoAttr(part).size


def _bytes(value: Value, shape: tuple[int, ...]) -> int:
    if not isinstance(value.type, ir.RankedTensorType):
        return 0  # a token, a tuple
    return math.prod(shape) * dtype_of(value).itemsize


def _gathered(op: Any, local: Mapping[Value, tuple[int, ...]], sizes: Mapping[str, int]) -> float:
    before, after = (_bytes(x, local[x]) for x in (op.operands[0], op.results[0]))
    return max(after - before, 0)


def _scattered(op: Any, local: Mapping[Value, tuple[int, ...]], sizes: Mapping[str, int]) -> float:
    before, after = (_bytes(x, local[x]) for x in (op.operands[0], op.results[0]))
    return max(before - after, 0)


def _reduced(op: Any, local: Mapping[Value, tuple[int, ...]], sizes: Mapping[str, int]) -> float:
    axes = _AXIS.findall(str(op.attributes["reduction_axes"]))
    devices = math.prod(int(part) if part else sizes[name] for name, part in axes)
    return 2 * _bytes(op.results[0], local[op.results[0]]) * (devices - 1) / devices


def _exchanged(op: Any, local: Mapping[Value, tuple[int, ...]], sizes: Mapping[str, int]) -> float:
    return _bytes(op.results[0], local[op.results[0]])


# What one device sends by each of Shardy's collectives.
_SENDERS = {
    "sdy.all_gather": _gathered,
    "sdy.reduce_scatter": _scattered,
    "sdy.all_reduce": _reduced,
    "sdy.all_to_all": _exchanged,
    "sdy.collective_permute": _exchanged,
}


def _operations_of_product(op: Any, local: Mapping[Value, tuple[int, ...]]) -> float:
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    shape = local[op.operands[0]]
    inner = math.prod(shape[d] for d in numbers.lhs_contracting_dimensions)
    return 2.0 * math.prod(local[op.results[0]]) * inner


def _operations_of_convolution(op: Any, local: Mapping[Value, tuple[int, ...]]) -> float:
    numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    outer = numbers.kernel_output_feature_dimension
    of_one = math.prod(n for d, n in enumerate(local[op.operands[1]]) if d != outer)
    return 2.0 * math.prod(local[op.results[0]]) * of_one
