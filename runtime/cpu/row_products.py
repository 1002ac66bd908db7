"""Products of a few rows by a matrix, in LLVM IR: each reads the matrix once, as fast as memory is.

A token's products are of one row, and of a few where a few sequences are decoded at a time. A
library brings the matrix into blocks first, for the sake of many rows. Here rows of the matrix are
read side by side as they lie, and the processor is told which come next. Sums are in float32.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from llvmlite import ir

from xla_dynamo.runtime.cpu import features, native_code
from xla_dynamo.runtime.cpu.float_functions import converted_from, converted_to, repeated
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD, Function

_FLOAT, _HALF = ir.FloatType(), ir.IntType(16)
_TYPES, _BYTES = {torch.float32: _FLOAT, torch.bfloat16: _HALF}, {_FLOAT: 4, _HALF: 2}
DTYPES = tuple(_TYPES)
_SIDE_BY_SIDE = 2  # vectors of a row of the matrix that are read in one turn
_MATRIX_ROWS = 4  # of [columns, inner] that are read side by side
_NOTHING = ir.VoidType()


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


_WIDE, _NARROW = Registers(16, 4, 8), Registers(8, 2, 4)


@functools.cache
def function(is_transposed: bool, given: torch.dtype, made: torch.dtype) -> Any:
    """The function of ctypes that computes some columns of a product x @ matrix (+ bias + sum).

    It returns 0, or 1 where there is no memory. Its arguments are addresses of the first elements
    that it reads or writes, then numbers:

        x [rows, inner], the matrix, a bias [columns] or null, what is added [rows, columns] or
        null, the result [rows, columns]; rows, inner, columns, all columns

    The matrix is [inner, all columns], or transposed [all columns, inner]. What is added, and the
    result, have as many elements between rows as there are columns in all.

    Args:
        is_transposed: whether the matrix is.
        given: the dtype of x, matrix and bias, float32 or bfloat16.
        made: that of the result and of what is added: the same, or float32.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    wide = "avx512" in features.family()
    text = written(is_transposed, given, made, _WIDE if wide else _NARROW)
    c = ctypes.CDLL(None)
    known = {name: ctypes.cast(getattr(c, name), ctypes.c_void_p).value for name in _EXTERNALS}
    return of_address(native_code.load(text, {k: v or 0 for k, v in known.items()})[_NAME])


def of_address(address: int) -> Any:
    """The function at an address, as ctypes has it."""
    found: Any = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 9)(address)
    found.__name__ = "a product of few rows"
    return found


_NAME = "row_product"
_EXTERNALS = {
    "malloc": ir.FunctionType(ADDRESS, [WORD]),
    "free": ir.FunctionType(_NOTHING, [ADDRESS]),
}


def written(is_transposed: bool, given: torch.dtype, made: torch.dtype, fits: Registers) -> str:
    """The text of a module with the `function`, for registers."""
    module = ir.Module(_NAME)
    externals = {name: ir.Function(module, kind, name) for name, kind in _EXTERNALS.items()}
    _Writer(module, _TYPES[given], _TYPES[made], fits).write(externals, is_transposed)
    return str(module)


class _Writer:
    """Writes the function: x in float32, the sums, and the result of these."""

    def __init__(self, module: ir.Module, given: ir.Type, made: ir.Type, fits: Registers) -> None:
        self._given, self._made, self._fits = given, made, fits
        self._body = Function(module, _NAME, NUMBER, [*[ADDRESS] * 5, *[WORD] * 4], exported=True)
        self._build = self._body.build
        arguments = self._body.arguments
        self._x, self._matrix, self._bias, self._added, self._result = arguments[:5]
        self._rows, self._inner, self._columns, self._all = arguments[5:]
        vector, name = ir.VectorType(_FLOAT, fits.lanes), f"v{fits.lanes}f32"
        self._multiply_add = {
            kind: ir.Function(module, ir.FunctionType(kind, [kind] * 3), f"llvm.fmuladd.{name}")
            for kind, name in ((_FLOAT, "f32"), (vector, name))
        }
        kind = ir.FunctionType(_FLOAT, [_FLOAT, vector])
        self._total = ir.Function(module, kind, f"llvm.vector.reduce.fadd.{name}")
        kind = ir.FunctionType(_NOTHING, [ADDRESS, NUMBER, NUMBER, NUMBER])
        self._prefetch = ir.Function(module, kind, "llvm.prefetch.p0")
        self._vector = vector

    def write(self, externals: dict[str, ir.Function], is_transposed: bool) -> None:
        """Write it for a matrix, transposed or not."""
        build, is_half = self._build, self._given is _HALF
        sizes, of_x = (build.mul(self._rows, n) for n in (self._columns, self._inner))
        floats = build.add(sizes, of_x) if is_half else sizes
        room = build.call(externals["malloc"], [build.mul(floats, WORD(4))])
        with build.if_then(build.icmp_unsigned("==", room, ADDRESS(None)), likely=False):
            build.ret(NUMBER(1))
        self._sums = room
        if is_half:
            wide = self._at(room, sizes)
            self._each(
                of_x,
                lambda at, lanes: self._store(self._load(self._x, at, lanes, _HALF), wide, at),
            )
            self._x = wide
        if is_transposed:
            self._in_blocks(self._columns, _MATRIX_ROWS, self._rows_of_x)
        else:
            self._each(sizes, lambda at, lanes: self._store(self._zero(lanes), self._sums, at))
            self._in_blocks(self._inner, self._fits.inner, self._add_rows)
        self._finish()
        build.call(externals["free"], [room])
        build.ret(NUMBER(0))

    # --- a matrix [columns, inner]: each sum is a product of two rows -----------------------------

    def _rows_of_x(self, column: Any, columns: int) -> None:
        """Multiply all rows of x by some rows of the matrix, from one on."""

        def block(row: Any, rows: int) -> None:
            self._dot_products(row, rows, column, columns)

        self._in_blocks(self._rows, self._fits.rows, block)

    def _dot_products(self, row: Any, rows: int, column: Any, columns: int) -> None:
        """The sums of some rows and columns."""
        build, pairs = self._build, [(i, j) for i in range(rows) for j in range(columns)]
        left = [self._row(self._x, row, i, self._inner) for i in range(rows)]
        right = [
            self._row(self._matrix, column, j, self._inner, self._given) for j in range(columns)
        ]
        sums = {
            lanes: {pair: self._body.variable(self._kind(lanes)) for pair in pairs}
            for lanes in (self._fits.lanes, 1)
        }
        for lanes, rooms in sums.items():
            for room in rooms.values():
                build.store(self._zero(lanes), room)

        def multiply(at: Any, lanes: int) -> None:
            factors = [self._load(x, at, lanes) for x in left]
            for j, matrix in enumerate(right):
                self._fetch(matrix, at, build.mul(self._inner, WORD(columns)))
                weight = self._load(matrix, at, lanes, self._given)
                for i, factor in enumerate(factors):
                    room = sums[lanes][i, j]
                    sofar = build.load(room, typ=self._kind(lanes))
                    build.store(self._fused(weight, factor, sofar), room)

        self._each(self._inner, multiply)
        for i, j in pairs:
            vector, rest = (build.load(sums[n][i, j], typ=self._kind(n)) for n in sums)
            total = build.call(self._total, [rest, vector], fastmath=("reassoc",))
            of_row = self._row(self._sums, row, i, self._columns)
            self._store(total, of_row, build.add(column, WORD(j)))

    # --- a matrix [inner, columns]: its rows, each times a number, are added ----------------------

    def _add_rows(self, first: Any, count: int) -> None:
        """Add some rows of the matrix to the sums of each row of x."""
        build, body = self._build, self._body
        matrix = [self._row(self._matrix, first, i, self._all, self._given) for i in range(count)]

        def add(at: Any, lanes: int) -> None:
            beside = range(1 if lanes == 1 else _SIDE_BY_SIDE)
            places = [build.add(at, WORD(lanes * i)) for i in beside]
            for row in matrix:
                self._fetch(row, at, build.mul(self._all, WORD(count)))
            weights = [[self._load(r, p, lanes, self._given) for p in places] for r in matrix]
            with body.times(self._rows) as number:
                x = self._row(self._x, number, 0, self._inner)
                sums = self._row(self._sums, number, 0, self._columns)
                totals = [self._load(sums, p, lanes) for p in places]
                for i, row in enumerate(weights):
                    factor = self._load(x, build.add(first, WORD(i)), 1)
                    factor = factor if lanes == 1 else repeated(build, factor, lanes)
                    pairs = zip(row, totals, strict=True)
                    totals = [self._fused(w, factor, total) for w, total in pairs]
                for total, place in zip(totals, places, strict=True):
                    self._store(total, sums, place)

        self._each(self._columns, add, _SIDE_BY_SIDE)

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
                    self._each(self._columns, self._adding(sums, terms, kind))
            self._each(
                self._columns,
                lambda at, n: self._store(self._load(sums, at, n), result, at, self._made),
            )

    def _adding(self, sums: Any, terms: Any, kind: ir.Type) -> Callable[[Any, int], None]:
        """What adds terms of a kind to sums, at a place."""

        def add(at: Any, lanes: int) -> None:
            both = self._load(sums, at, lanes), self._load(terms, at, lanes, kind)
            self._store(self._build.fadd(*both), sums, at)

        return add

    # --- loops and elements --------------------------------------------------------------------

    def _each(self, count: Any, write: Callable[[Any, int], None], vectors: int = 1) -> None:
        """Do for elements what `write` writes at the first of so many lanes: vectors, then one."""
        lanes = self._fits.lanes
        self._in_blocks(count, lanes * vectors, lambda at, n: write(at, 1 if n == 1 else lanes))

    def _in_blocks(self, count: Any, many: int, write: Callable[[Any, int], None]) -> None:
        """Do for things what `write` writes for some, from a number on: `many`, then 1."""
        build, blocks = self._build, self._build.udiv(count, WORD(many))
        with self._body.times(blocks) as block:
            write(build.mul(block, WORD(many)), many)
        done = build.mul(blocks, WORD(many))
        with self._body.times(build.sub(count, done)) as rest:
            write(build.add(done, rest), 1)

    def _kind(self, lanes: int) -> ir.Type:
        return _FLOAT if lanes == 1 else self._vector

    def _zero(self, lanes: int) -> Any:
        return _FLOAT(0.0) if lanes == 1 else self._vector(None)

    def _fused(self, x: Any, y: Any, z: Any) -> Any:
        """The sum x * y + z, rounded once where the processor does."""
        return self._build.call(self._multiply_add[x.type], [x, y, z])

    def _at(self, base: Any, index: Any, kind: ir.Type = _FLOAT) -> Any:
        """The address of an element."""
        return self._body.address(base, self._build.mul(index, WORD(_BYTES[kind])))

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
        self._build.store(converted_to(self._build, value, kind), place, align=_BYTES[kind])

    def _fetch(self, matrix: Any, at: Any, ahead: Any) -> None:
        """Let the processor read what comes so many elements behind a place."""
        place = self._at(matrix, self._build.add(at, ahead), self._given)
        self._build.call(self._prefetch, [place, NUMBER(0), NUMBER(3), NUMBER(1)])
