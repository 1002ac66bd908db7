"""Scripts: calls of torch's C functions that a program makes as one custom call.

`runtime.cpu.call_scripts` says what a script is, and runs it. While it runs there are 24 slots of
64 bits: the first hold the addresses of the custom call's operands and then of its results. From
`FIRST_TENSOR` on they hold the tensors that the calls make, which a failure deletes. Between them
is room for what a call of an operator takes and gives.
"""

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.torch_private import C_FUNCTIONS

# The handler's name, as `runtime.cpu.call_scripts` registers it.
TARGET = "xla_dynamo.script"
_STACK, FIRST_TENSOR = 8, 16
# Where arguments and slots lie, in bytes, as `runtime.cpu.machine_code` has them.
_REGISTERS, _SLOTS, _MOST_ARGUMENTS = 144, 192, 24
# What is added to a number: the script's address, the slots', the first operand's; and whether the
# word at the sum is meant.
_IN_SCRIPT, _IN_SLOTS, _IN_OPERAND, _LOADED = 1, 2, 4, 8


class Argument(NamedTuple):
    """An argument of a C function: a number, or a word or an address that is known at the call."""

    kind: int
    value: int


NULL = Argument(0, 0)
_NOTHING: Mapping[int, Argument] = MappingProxyType({})


def number(value: int) -> Argument:
    """A number."""
    return Argument(0, value)


def slot(index: int) -> Argument:
    """What a slot holds."""
    return Argument(_IN_SLOTS | _LOADED, 8 * index)


def place_of_slot(index: int) -> Argument:
    """The address of a slot."""
    return Argument(_IN_SLOTS, 8 * index)


def element(index: int) -> Argument:
    """A number in the first operand, an array of 64-bit numbers."""
    return Argument(_IN_OPERAND | _LOADED, 8 * index)


def place_of_element(index: int) -> Argument:
    """The address of a number in the first operand."""
    return Argument(_IN_OPERAND, 8 * index)


class Script:
    """The calls of a script, as they are added."""

    def __init__(self) -> None:
        """Begin without any."""
        self._calls: list[tuple[int, list[tuple[int, Argument]]]] = []
        self._data: list[int] = []

    def array(self, values: Sequence[int]) -> Argument:
        """The address of an array of numbers."""
        start = 8 * len(self._data)
        self._data += values
        return Argument(_IN_SCRIPT, start)

    def text(self, value: str) -> Argument:
        """The address of a string, as C has it."""
        data = value.encode() + b"\0"
        data += b"\0" * (-len(data) % 8)
        return self.array(struct.unpack(f"<{len(data) // 8}q", data))

    def call(
        self, function: str, *arguments: Argument, stored: Mapping[int, Argument] = _NOTHING
    ) -> None:
        """Call a function of `C_FUNCTIONS`; what is `stored` by slots is there before the call.

        The arguments are what the slots held before.

        Raises:
            ValueError: there are more arguments than the handler has room for.
        """
        if len(arguments) > _MOST_ARGUMENTS:
            raise ValueError(f"{function} has more than {_MOST_ARGUMENTS} arguments")
        placed = [
            (_REGISTERS + 8 * i if i < 6 else 8 * (i - 6), argument)
            for i, argument in enumerate(arguments)
        ]
        placed += [(_SLOTS + 8 * index, argument) for index, argument in stored.items()]
        self._calls.append((C_FUNCTIONS.index(function), placed))

    def operator(self, name: str, overload: str, *tensors: int) -> None:
        """Call an operator of torch on tensors in these slots alone, whose result nobody reads.

        The operator may write into some of them.
        """
        for place, tensor in enumerate(tensors, _STACK):
            self.call("aoti_torch_new_tensor_handle", slot(tensor), place_of_slot(place))
        stack = place_of_slot(_STACK)
        self.call("aoti_torch_call_dispatcher", self.text(name), self.text(overload), stack)
        self.delete(_STACK)

    def delete(self, *tensors: int) -> None:
        """Delete tensors, and forget them, or a failure of a later call would delete them again."""
        for tensor in tensors:
            self.call("aoti_torch_delete_tensor_object", slot(tensor), stored={tensor: NULL})

    def words(self) -> list[int]:
        """The script."""
        length = 1 + sum(2 + 3 * len(placed) for _, placed in self._calls)
        words = [len(self._calls)]
        for function, placed in self._calls:
            words += [function, len(placed)]
            for place, (kind, value) in placed:
                words += [place, kind, value + 8 * length if kind & _IN_SCRIPT else value]
        return [*words, *self._data]

    def operation(self, operands: Sequence[Value], types: Sequence[ir.Type]) -> ir.Operation:
        """The custom call that runs the script, on operands and with results that are row-major."""
        operation = hlo.CustomCallOp(
            list(types),
            list(operands),
            TARGET,
            backend_config=ir.DictAttr.get({"script": ir.DenseI64ArrayAttr.get(self.words())}),
            operand_layouts=ir.ArrayAttr.get([row_major_layout(x.type) for x in operands]),
            result_layouts=ir.ArrayAttr.get([row_major_layout(t) for t in types]),
            api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
        )
        return operation.operation


def row_major_layout(given: ir.Type) -> ir.Attribute:
    """A layout as XLA has it: dimensions from the innermost in memory to the outermost."""
    order = np.arange(given.rank)[::-1].copy()
    return ir.DenseIntElementsAttr.get(order, type=ir.IndexType.get())
