"""Products of float32 rows with weights of a narrow type, in LLVM IR, for scripts of calls.

At few rows a product takes as long as its weight is read. So a weight in int8, float8 or int4 is
widened in registers, and no float copy of it is ever in memory.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir

from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, BYTE, NUMBER, WORD, Function

FLOAT, _HALF = ir.FloatType(), ir.IntType(16)
# How many rows and columns are summed at once: as many as the registers of AVX-512 hold. Each is a
# vector of `LANES` parts of the sum.
HEIGHTS, WIDTHS = (4, 2, 1), (4, 1)
LANES = 16
_ZERO = ir.Constant(ir.VectorType(FLOAT, LANES), [0.0] * LANES)


class Narrow:
    """The functions of a module."""

    def __init__(self, name: str) -> None:
        """Begin a module."""
        self.module = ir.Module(name)

    def intrinsic(self, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        """A function that LLVM knows."""
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def add_product(self, build: ir.IRBuilder, x: Any, y: Any, total: Any) -> Any:
        """The sum x * y + total, rounded once where the processor can."""
        kind = total.type
        name = f"llvm.fmuladd.v{kind.count}f32" if kind is not FLOAT else "llvm.fmuladd.f32"
        return build.call(self.intrinsic(name, kind, kind, kind, kind), [x, y, total])


def vector(kind: ir.Type, count: int = LANES) -> ir.Type:
    """A vector of a type."""
    return ir.VectorType(kind, count)


def repeated(kind: ir.Type, count: int, value: Any) -> Any:
    """A constant vector of a number."""
    return ir.Constant(vector(kind, count), [value] * count)


def int8_as_floats(build: ir.IRBuilder, given: Any) -> Any:
    """An int8, or a vector of them, as float32."""
    if isinstance(given.type, ir.VectorType):
        count = given.type.count
        return build.sitofp(build.sext(given, vector(NUMBER, count)), vector(FLOAT, count))
    return build.sitofp(given, FLOAT)


# By the name of a dtype, how its elements become float32.
WIDENED: dict[str, Callable[[ir.IRBuilder, Any], Any]] = {"int8": int8_as_floats}


def write_row_products(name: str) -> str:
    """A module with `product`, for weights of the dtype of a name, one element a byte.

    The function computes some columns of [rows, inner] @ [columns, inner].T. It takes the addresses
    of the float32 rows, of the weight and of the float32 result, then the three sizes, and from
    which to which column; it returns 0.
    """
    made = Narrow(f"products of {name}")
    sizes = itertools.product(HEIGHTS, WIDTHS)
    blocks = {block: _write_block(made, WIDENED[name], *block) for block in sizes}
    body = Function(made.module, "product", NUMBER, [ADDRESS] * 3 + [WORD] * 5, exported=True)
    rows, inner, columns, start, stop = body.arguments[3:]
    for column, width in steps(body, start, stop, WIDTHS):
        for row, height in steps(body, WORD(0), rows, HEIGHTS):
            place = [inner, columns, row, column]
            body.build.call(blocks[height, width], [*body.arguments[:3], *place])
    body.build.ret(NUMBER(0))
    return str(made.module)


def steps(body: Function, start: Any, stop: Any, sizes: Sequence[int]) -> Iterator[tuple[Any, int]]:
    """Go from start to stop in steps of falling sizes, the last of which is 1.

    What is written for each is done there: gives where it starts, and its size.
    """
    build = body.build
    for size in sizes:
        whole = build.udiv(build.sub(stop, start), WORD(size))
        with body.times(whole) as turn:
            yield build.add(start, build.mul(turn, WORD(size))), size
        start = build.add(start, build.mul(whole, WORD(size)))


@contextlib.contextmanager
def summing(body: Function, count: Any, sums: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Do what is written inside so many times; gives the turn and what the sums are so far.

    What is written inside replaces the elements of the list, which afterwards has the last sums.
    """
    build, places = body.build, [body.variable(one.type) for one in sums]
    for place, one in zip(places, sums, strict=True):
        build.store(one, place)
    with body.times(count) as turn:
        now = [build.load(place, typ=one.type) for place, one in zip(places, sums, strict=True)]
        yield turn, now
        for place, one in zip(places, now, strict=True):
            build.store(one, place)
    now[:] = [build.load(place, typ=one.type) for place, one in zip(places, sums, strict=True)]


def _write_block(
    made: Narrow, widened: Callable[[ir.IRBuilder, Any], Any], height: int, width: int
) -> ir.Function:
    """The function of a block of the result: some rows and columns from a row and a column on."""
    name = f"block_{height}_{width}"
    body = Function(made.module, name, ir.VoidType(), [ADDRESS] * 3 + [WORD] * 4)
    (x, weight, out, inner, columns, row, column), build = body.arguments, body.build
    rows = [body.address(x, _bytes(body, row, i, inner, 4)) for i in range(height)]
    weights = [body.address(weight, _bytes(body, column, i, inner, 1)) for i in range(width)]
    whole = build.udiv(inner, WORD(LANES))
    with summing(body, whole, [_ZERO] * (height * width)) as (turn, sums):
        at = build.mul(turn, WORD(LANES))
        _add_block(made, body, (rows, weights), at, sums, widened)
    added = made.intrinsic(f"llvm.vector.reduce.fadd.v{LANES}f32", FLOAT, FLOAT, _ZERO.type)
    parts = [build.call(added, [FLOAT(0.0), one], fastmath=["reassoc"]) for one in sums]
    done = build.mul(whole, WORD(LANES))
    with summing(body, build.sub(inner, done), parts) as (turn, sums):
        _add_block(made, body, (rows, weights), build.add(done, turn), sums, widened)
    for number, one in enumerate(sums):
        at = _bytes(body, row, number // width, columns, 4)
        beside = build.mul(build.add(column, WORD(number % width)), WORD(4))
        build.store(one, body.address(out, at, beside), align=4)
    build.ret_void()
    return body.function


def _bytes(body: Function, index: Any, more: int, size: Any, bytes_: int) -> Any:
    """How many bytes are in front of row `index + more`, of rows of a size."""
    rows = body.build.add(index, WORD(more))
    return body.build.mul(rows, body.build.mul(size, WORD(bytes_)))


def _add_block(
    made: Narrow,
    body: Function,
    starts: tuple[Sequence[Any], Sequence[Any]],
    at: Any,
    sums: list[Any],
    widened: Callable[[ir.IRBuilder, Any], Any],
) -> None:
    """Add the products of the elements from `at` on to the sums: as many as a sum has parts."""
    build, kind = body.build, sums[0].type
    narrow = vector(BYTE, kind.count) if kind is not FLOAT else BYTE
    x, weights = starts
    wide = [widened(build, build.load(body.address(w, at), typ=narrow, align=1)) for w in weights]
    bytes_ = build.mul(at, WORD(4))
    for i, row in enumerate(x):
        values = build.load(body.address(row, bytes_), typ=kind, align=4)
        for j, one in enumerate(wide):
            number = i * len(wide) + j
            sums[number] = made.add_product(build, values, one, sums[number])
