"""Products of a few rows by a matrix, in LLVM IR: each reads the matrix once, as fast as memory is.

A token's products are of one row, and of a few where a few sequences are decoded at a time. A
library brings the matrix into blocks first, for the sake of many rows. Here rows of the matrix are
read side by side as they lie, and the processor is told which come next. A matrix in a narrower
dtype is widened in registers. Sums are in float32.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from llvmlite import ir

from xla_dynamo.runtime.cpu.float_functions import BYTES, converted_from, converted_to, repeated
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, BYTE, NUMBER, WORD, Function

_FLOAT, _HALF = ir.FloatType(), ir.IntType(16)
_TYPES = {torch.float32: _FLOAT, torch.bfloat16: _HALF, torch.int8: BYTE}
_LINE = 64  # bytes that a processor reads from memory at a time
_SIDE_BY_SIDE = 2  # vectors of a row of [inner, columns] that are read in one turn
_MATRIX_ROWS = 4  # of [columns, inner] that are read side by side
_NOTHING = ir.VoidType()
NAME = "row_product"
EXTERNALS = {
    "malloc": ir.FunctionType(ADDRESS, [WORD]),
    "free": ir.FunctionType(_NOTHING, [ADDRESS]),
}


class Registers(NamedTuple):
    """What fits the registers of a processor.

    Attributes:
        lanes: floats of a vector.
        rows: of the first factor, which are multiplied at a time.
        inner: rows of a matrix [inner, columns], which are read side by side.
    """

    lanes: int
    rows: int
    inner: int


WIDE, NARROW = Registers(16, 4, 8), Registers(8, 2, 4)


def written(
    is_transposed: bool,
    given: torch.dtype,
    weight: torch.dtype,
    made: torch.dtype,
    fits: Registers,
) -> str:
    """The text of a module with the function of `row_products`, for registers."""
    module = ir.Module(NAME)
    externals = {name: ir.Function(module, kind, name) for name, kind in EXTERNALS.items()}
    kinds = _TYPES[given], _TYPES[weight], _TYPES[made]
    _Writer(module, kinds, fits).write(externals, is_transposed)
    return str(module)


class _Writer:
    """Writes the function: x in float32, the sums, and the result of these."""

    def __init__(
        self, module: ir.Module, kinds: tuple[ir.Type, ir.Type, ir.Type], fits: Registers
    ) -> None:
        self._fits, (self._given, self._weight, self._made) = fits, kinds
        self._body = Function(module, NAME, NUMBER, [*[ADDRESS] * 5, *[WORD] * 4], exported=True)
        self._build = self._body.build
        arguments = self._body.arguments
        self._x, self._matrix, self._bias, self._added, self._result = arguments[:5]
        self._rows, self._inner, self._columns, self._all = arguments[5:]
        self._vector = ir.VectorType(_FLOAT, fits.lanes)

    def write(self, externals: dict[str, ir.Function], is_transposed: bool) -> None:
        """Write it for a matrix, transposed or not."""
        build, body, is_half = self._build, self._body, self._given is _HALF
        sizes, of_x = (build.mul(self._rows, n) for n in (self._columns, self._inner))
        floats = build.add(sizes, of_x) if is_half else sizes
        room = build.call(externals["malloc"], [build.mul(floats, WORD(4))])
        with build.if_then(build.icmp_unsigned("==", room, ADDRESS(None)), likely=False):
            build.ret(NUMBER(1))
        self._sums = room
        if is_half:
            wide = self._at(room, sizes)
            for at, lanes in self._each(of_x):
                self._store(self._load(self._x, at, lanes, _HALF), wide, at)
            self._x = wide
        if is_transposed:
            for column, columns in body.steps(WORD(0), self._columns, (_MATRIX_ROWS, 1)):
                for row, rows in body.steps(WORD(0), self._rows, (self._fits.rows, 1)):
                    self._dot_products(row, rows, column, columns)
        else:
            for at, lanes in self._each(sizes):
                self._store(self._zero(lanes), self._sums, at)
            for first, count in body.steps(WORD(0), self._inner, (self._fits.inner, 1)):
                self._add_rows(first, count)
        self._finish()
        build.call(externals["free"], [room])
        build.ret(NUMBER(0))

    def _dot_products(self, row: Any, rows: int, column: Any, columns: int) -> None:
        """Sums for a matrix [columns, inner]: each is a product of two rows."""
        build, body = self._build, self._body
        left = [self._row(self._x, row, i, self._inner) for i in range(rows)]
        right = [
            self._row(self._matrix, column, j, self._inner, self._weight) for j in range(columns)
        ]
        ahead = build.mul(self._inner, WORD(columns))
        lanes = self._fits.lanes
        beside = max(_LINE // (lanes * BYTES[self._weight]), 1)
        totals = [_FLOAT(0.0)] * (rows * columns)
        start = WORD(0)
        for count, width in dict.fromkeys(((beside, lanes), (1, lanes), (1, 1))):
            turns = build.udiv(build.sub(self._inner, start), WORD(count * width))
            with body.summing(turns, [self._zero(width)] * (rows * columns)) as (turn, sums):
                first = build.add(start, build.mul(turn, WORD(count * width)))
                if (count, width) == (beside, lanes):
                    for matrix in right:
                        self._fetch(matrix, first, ahead)
                for part in range(count):
                    at = build.add(first, WORD(part * width))
                    factors = [self._load(x, at, width) for x in left]
                    for j, matrix in enumerate(right):
                        weight = self._load(matrix, at, width, self._weight)
                        for i, factor in enumerate(factors):
                            k = i * columns + j
                            sums[k] = body.multiply_add(weight, factor, sums[k])
            totals = [self._added_up(t, s, width) for t, s in zip(totals, sums, strict=True)]
            start = build.add(start, build.mul(turns, WORD(count * width)))
        for k, total in enumerate(totals):
            of_row = self._row(self._sums, row, k // columns, self._columns)
            self._store(total, of_row, build.add(column, WORD(k % columns)))

    def _added_up(self, total: Any, value: Any, width: int) -> Any:
        """A float plus another one, or plus those of a vector."""
        if width == 1:
            return self._build.fadd(total, value)
        name = f"llvm.vector.reduce.fadd.v{width}f32"
        known = self._body.intrinsic(name, _FLOAT, _FLOAT, self._vector)
        return self._build.call(known, [total, value], fastmath=("reassoc",))

    def _add_rows(self, first: Any, count: int) -> None:
        """Add rows of a matrix [inner, columns], each times a number, to the sums of rows of x."""
        build, body = self._build, self._body
        matrix = [self._row(self._matrix, first, i, self._all, self._weight) for i in range(count)]
        for at, lanes in self._each(self._columns, _SIDE_BY_SIDE):
            beside = range(1 if lanes == 1 else _SIDE_BY_SIDE)
            places = [build.add(at, WORD(lanes * i)) for i in beside]
            for row in matrix:
                self._fetch(row, at, build.mul(self._all, WORD(count)))
            weights = [[self._load(r, p, lanes, self._weight) for p in places] for r in matrix]
            with body.times(self._rows) as number:
                x = self._row(self._x, number, 0, self._inner)
                sums = self._row(self._sums, number, 0, self._columns)
                totals = [self._load(sums, p, lanes) for p in places]
                for i, row in enumerate(weights):
                    factor = self._load(x, build.add(first, WORD(i)), 1)
                    factor = factor if lanes == 1 else repeated(build, factor, lanes)
                    pairs = zip(row, totals, strict=True)
                    totals = [body.multiply_add(w, factor, total) for w, total in pairs]
                for total, place in zip(totals, places, strict=True):
                    self._store(total, sums, place)

    def _finish(self) -> None:
        """The result: the sums, plus a bias and what is added, in its dtype."""
        build = self._build
        with self._body.times(self._rows) as row:
            sums = self._row(self._sums, row, 0, self._columns)
            added = self._row(self._added, row, 0, self._all, self._made)
            result = self._row(self._result, row, 0, self._all, self._made)
            for given, terms, kind in (
                (self._bias, self._bias, self._given),
                (self._added, added, self._made),
            ):
                with build.if_then(build.icmp_unsigned("!=", given, ADDRESS(None))):
                    for at, lanes in self._each(self._columns):
                        both = self._load(sums, at, lanes), self._load(terms, at, lanes, kind)
                        self._store(build.fadd(*both), sums, at)
            for at, lanes in self._each(self._columns):
                self._store(self._load(sums, at, lanes), result, at, self._made)

    # --- loops and elements --------------------------------------------------------------------

    def _each(self, count: Any, vectors: int = 1) -> Iterator[tuple[Any, int]]:
        """Go through elements: gives the first of some vectors, and their lanes; then of one."""
        lanes = self._fits.lanes
        for at, size in self._body.steps(WORD(0), count, (lanes * vectors, 1)):
            yield at, 1 if size == 1 else lanes

    def _kind(self, lanes: int) -> ir.Type:
        return _FLOAT if lanes == 1 else self._vector

    def _zero(self, lanes: int) -> Any:
        return _FLOAT(0.0) if lanes == 1 else self._vector(None)

    def _at(self, base: Any, index: Any, kind: ir.Type = _FLOAT) -> Any:
        """The address of an element."""
        return self._body.address(base, self._build.mul(index, WORD(BYTES[kind])))

    def _row(self, base: Any, row: Any, more: int, stride: Any, kind: ir.Type = _FLOAT) -> Any:
        """The address of a row of elements, `more` rows behind one."""
        build = self._build
        return self._at(base, build.mul(build.add(row, WORD(more)), stride), kind)

    def _load(self, base: Any, at: Any, lanes: int, kind: ir.Type = _FLOAT) -> Any:
        """Elements of a kind, in float32."""
        place = self._at(base, at, kind)
        return converted_from(self._build, place, kind, self._kind(lanes))

    def _store(self, value: Any, base: Any, at: Any, kind: ir.Type = _FLOAT) -> None:
        """Write floats as elements of a kind."""
        place = self._at(base, at, kind)
        self._build.store(converted_to(self._build, value, kind), place, align=BYTES[kind])

    def _fetch(self, matrix: Any, at: Any, ahead: Any) -> None:
        """Let the processor read what comes so many elements behind a place."""
        self._body.fetch(self._at(matrix, self._build.add(at, ahead), self._weight))
