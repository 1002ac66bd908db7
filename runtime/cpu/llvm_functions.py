"""A function in LLVM IR, as it is written: memory is addressed by structures of ctypes."""

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir

WORD, NUMBER, BYTE, ADDRESS = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.PointerType()


class Function:
    """A function of a module, whose body is written by `build`, LLVM's builder.

    Attributes:
        function: what others call.
        build: writes at the end of what is there.
        arguments: the function's.
    """

    def __init__(
        self,
        module: ir.Module,
        name: str,
        result: ir.Type,
        arguments: Sequence[ir.Type],
        *,
        exported: bool = False,
    ) -> None:
        """Begin a function, which no other module calls unless it is exported."""
        self.function = ir.Function(module, ir.FunctionType(result, arguments), name)
        if not exported:
            self.function.linkage = "internal"
        self.build = ir.IRBuilder(self.function.append_basic_block())
        self.arguments = self.function.args

    def variable(self, type_: ir.Type, count: int = 1) -> Any:
        """The address of room on the stack, which is the same in each turn of a loop."""
        with self.build.goto_entry_block():
            made = self.build.alloca(type_, count)
        made.type = ADDRESS  # llvmlite's has the type of what it points to
        return made

    def address(self, base: Any, *offsets: Any) -> Any:
        """An address plus offsets in bytes: numbers, or words that are computed."""
        for offset in offsets:
            index = WORD(offset) if isinstance(offset, int) else offset
            base = self.build.gep(base, [index], source_etype=BYTE)
        return base

    def load(self, base: Any, *offsets: Any, type_: ir.Type = WORD) -> Any:
        """The word at an address plus offsets."""
        return self.build.load(self.address(base, *offsets), typ=type_)

    def store(self, value: Any, base: Any, *offsets: Any) -> None:
        """Write a value, or a number as a word, to an address plus offsets."""
        self.build.store(
            WORD(value) if isinstance(value, int) else value, self.address(base, *offsets)
        )

    def element(self, base: Any, structure: type[ctypes.Structure], index: Any) -> Any:
        """The address of an element of an array of structures."""
        return self.address(base, self.build.mul(index, WORD(ctypes.sizeof(structure))))

    def add(self, number: int, base: Any, offset: int, ordering: str) -> Any:
        """Add to a word that threads share, at once; returns what it was."""
        return self.build.atomic_rmw("add", self.address(base, offset), WORD(number), ordering)

    @contextlib.contextmanager
    def times(self, count: Any) -> Iterator[Any]:
        """Do what is written inside so many times; gives the number of the turn, from 0."""
        build = self.build
        before, head, body, behind = (
            build.block,
            *map(self.function.append_basic_block, ("head", "body", "behind")),
        )
        build.branch(head)
        build.position_at_end(head)
        turn = build.phi(WORD)
        turn.add_incoming(WORD(0), before)
        build.cbranch(build.icmp_unsigned("<", turn, count), body, behind)
        build.position_at_end(body)
        yield turn
        turn.add_incoming(build.add(turn, WORD(1)), build.block)
        build.branch(head)
        build.position_at_end(behind)

    def intrinsic(self, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        """A function that LLVM knows by this name, which the module declares once."""
        module = self.function.module
        known = module.globals.get(name)
        return known or ir.Function(module, ir.FunctionType(result, arguments), name)

    def multiply_add(self, x: Any, y: Any, total: Any) -> Any:
        """The sum x * y + total of floats, or vectors, rounded once where the processor can."""
        kind = total.type
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        known = self.intrinsic(f"llvm.fmuladd.{suffix}", kind, kind, kind, kind)
        return self.build.call(known, [x, y, total])

    def fetch(self, address: Any) -> None:
        """Let the processor read what lies at an address, which need not be there."""
        flags = ADDRESS, NUMBER, NUMBER, NUMBER
        known = self.intrinsic("llvm.prefetch.p0", ir.VoidType(), *flags)
        self.build.call(known, [address, NUMBER(0), NUMBER(3), NUMBER(1)])

    def steps(self, start: Any, stop: Any, sizes: Sequence[int]) -> Iterator[tuple[Any, int]]:
        """Go from start to stop in steps of falling sizes, the last of which is 1.

        What is written for each is done there: gives where it starts, and its size.
        """
        build = self.build
        for size in sizes:
            whole = build.udiv(build.sub(stop, start), WORD(size))
            with self.times(whole) as turn:
                yield build.add(start, build.mul(turn, WORD(size))), size
            start = build.add(start, build.mul(whole, WORD(size)))

    @contextlib.contextmanager
    def summing(self, count: Any, sums: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
        """Do what is written inside so many times; gives the turn and what the sums are so far.

        What is written inside replaces the elements of the list, which afterwards has the last
        sums.
        """
        build, places = self.build, [self.variable(one.type) for one in sums]
        for place, one in zip(places, sums, strict=True):
            build.store(one, place)
        with self.times(count) as turn:
            now = [build.load(place, typ=one.type) for place, one in zip(places, sums, strict=True)]
            yield turn, now
            for place, one in zip(places, now, strict=True):
                build.store(one, place)
        now[:] = [build.load(place, typ=one.type) for place, one in zip(places, sums, strict=True)]

    @contextlib.contextmanager
    def forever(self) -> Iterator[Any]:
        """Do what is written inside until it returns or leaves; gives the number of the turn."""
        build = self.build
        before, body = build.block, self.function.append_basic_block("again")
        build.branch(body)
        build.position_at_end(body)
        turn = build.phi(WORD)
        turn.add_incoming(WORD(0), before)
        yield turn
        turn.add_incoming(build.add(turn, WORD(1)), build.block)
        build.branch(body)


def offset(structure: Any, *names: str) -> int:
    """Where a field of a structure is, or one of a structure inside it, in bytes."""
    found = 0
    for name in names:
        found += getattr(structure, name).offset
        structure = dict(structure._fields_)[name]
    return found


def text(module: ir.Module, name: str, value: str) -> Any:
    """The address of a text that ends with 0."""
    data = bytearray(value.encode() + b"\0")
    variable = ir.GlobalVariable(module, ir.ArrayType(BYTE, len(data)), name)
    variable.linkage, variable.global_constant = "internal", True
    variable.initializer = ir.Constant(variable.value_type, data)
    return variable
