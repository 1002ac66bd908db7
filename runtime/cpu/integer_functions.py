"""Products of a few rows by a matrix, both in int8, in LLVM IR with one instruction of x86 (VNNI).

The instruction adds four products of bytes to each of 16 sums, and takes the bytes of one factor
without a sign. So 128 is added to the matrix's, and 128 times the sum of the row is taken away.
Sums wrap around in int32, so what comes between does not matter.
"""

from typing import Any

from llvmlite import ir

from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, BYTE, NUMBER, WORD, Function

NAME = "integer_product"
_SUMS = 16  # of a vector
_BYTES = 4 * _SUMS
# Rows of x, and of the matrix, which are multiplied side by side.
_HEIGHTS, _COLUMNS = (4, 2, 1), (4, 1)
_VECTOR, _INTEGERS = ir.VectorType(BYTE, _BYTES), ir.VectorType(NUMBER, _SUMS)
_FLIPPED, _ONES = (ir.Constant(_VECTOR, [value] * _BYTES) for value in (0x80, 1))


def written(most_rows: int) -> str:
    """The text of a module with the function of `integer_products`, for so many rows at most."""
    module = ir.Module(NAME)
    body = Function(module, NAME, NUMBER, [*[ADDRESS] * 3, *[WORD] * 3], exported=True)
    _Writer(body, most_rows).write()
    return str(module)


class _Writer:
    def __init__(self, body: Function, most_rows: int) -> None:
        self._body, self._build = body, body.build
        self._x, self._matrix, self._result, self._rows, self._inner, self._columns = body.arguments
        self._whole = body.build.udiv(self._inner, WORD(_BYTES))
        self._done = body.build.mul(self._whole, WORD(_BYTES))
        self._sums = body.variable(NUMBER, most_rows)

    def write(self) -> None:
        """The sums of x, and then all products."""
        body, build = self._body, self._build
        with body.times(self._rows) as row:
            x = self._row(self._x, row)
            with body.summing(self._whole, [_INTEGERS(None)]) as (turn, sums):
                sums[0] = self._multiplied(_ONES, self._load(x, turn), sums[0])
            total = build.shl(self._added_up(sums[0]), NUMBER(7))
            body.store(total, self._sums, build.mul(row, WORD(4)))
        for column, columns in body.steps(WORD(0), self._columns, _COLUMNS):
            for row, rows in body.steps(WORD(0), self._rows, _HEIGHTS):
                self._products(row, rows, column, columns)
        build.ret(NUMBER(0))

    def _products(self, row: Any, rows: int, column: Any, columns: int) -> None:
        """Those of some rows of x by some of the matrix."""
        body, build = self._body, self._build
        left = [self._row(self._x, row, i) for i in range(rows)]
        right = [self._row(self._matrix, column, j) for j in range(columns)]
        ahead = build.mul(self._inner, WORD(columns))
        with body.summing(self._whole, [_INTEGERS(None)] * (rows * columns)) as (turn, sums):
            given = [self._load(x, turn) for x in left]
            for j, matrix in enumerate(right):
                body.fetch(body.address(matrix, build.mul(turn, WORD(_BYTES)), ahead))
                weight = build.xor(self._load(matrix, turn), _FLIPPED)
                for i, x in enumerate(given):
                    k = i * columns + j
                    sums[k] = self._multiplied(weight, x, sums[k])
        totals = []
        for k, one in enumerate(sums):
            place = build.mul(build.add(row, WORD(k // columns)), WORD(4))
            of_x = body.load(self._sums, place, type_=NUMBER)
            totals.append(build.sub(self._added_up(one), of_x))
        with body.summing(build.sub(self._inner, self._done), totals) as (turn, sums):
            at = build.add(self._done, turn)
            for k in range(len(sums)):
                factors = (
                    build.sext(body.load(one, at, type_=BYTE), NUMBER)
                    for one in (left[k // columns], right[k % columns])
                )
                sums[k] = build.add(sums[k], build.mul(*factors))
        for k, total in enumerate(sums):
            of_column = build.mul(build.add(column, WORD(k % columns)), self._rows)
            index = build.add(of_column, build.add(row, WORD(k // columns)))
            body.store(total, self._result, build.mul(index, WORD(4)))

    def _row(self, base: Any, row: Any, more: int = 0) -> Any:
        build = self._build
        return self._body.address(base, build.mul(build.add(row, WORD(more)), self._inner))

    def _load(self, row: Any, turn: Any) -> Any:
        place = self._body.address(row, self._build.mul(turn, WORD(_BYTES)))
        return self._build.load(place, typ=_VECTOR, align=1)

    def _multiplied(self, unsigned: Any, signed: Any, total: Any) -> Any:
        """Sums, plus the products of four bytes each, written as an assembler has it.

        LLVM's name for it takes other types from one release to the next.
        """
        kind = ir.FunctionType(_INTEGERS, [_VECTOR, _VECTOR, _INTEGERS])
        instruction = "vpdpbusd $2, $1, $0"
        return self._build.asm(
            kind, instruction, "=v,v,v,0", [unsigned, signed, total], side_effect=False
        )

    def _added_up(self, sums: Any) -> Any:
        name = f"llvm.vector.reduce.add.v{_SUMS}i32"
        return self._build.call(self._body.intrinsic(name, NUMBER, _INTEGERS), [sums])
