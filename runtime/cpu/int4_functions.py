"""Products of float32 rows with weights in int4, as torch packs them for AVX-512, in LLVM IR.

Of a block of 64 columns, each element of the inner size has 32 bytes: byte i of the first 16 has
column i in its lower half and column i + 32 in its upper one, and byte i of the others columns i +
16 and i + 48. Where fewer columns are left at the end, byte i has columns 2i and 2i + 1. A half is
a number from 0 to 15, which means a group's scale times (the number - 8), plus the group's zero.
"""

from typing import Any

from llvmlite import ir

from xla_dynamo.runtime.cpu import float_functions
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, BYTE, NUMBER, WORD, Function

FLOAT, _HALF = ir.FloatType(), ir.IntType(16)
# How many rows are summed at once: as many as the registers of AVX-512 hold. Each sum is a vector
# of so many columns.
HEIGHTS, LANES = (4, 2, 1), 16
COLUMNS = 64  # of a block


def vector(kind: ir.Type, count: int = LANES) -> ir.Type:
    """A vector of a type."""
    return ir.VectorType(kind, count)


def repeated(kind: ir.Type, count: int, value: Any) -> Any:
    """A constant vector of a number."""
    return ir.Constant(vector(kind, count), [value] * count)


_NUMBERS = ir.Constant(vector(FLOAT), [float(i - 8) for i in range(16)])


def write_int4_products(name: str) -> str:
    """A module with `product`, for scales and zeros of the dtype of a name, float32 or bfloat16.

    The function computes some columns. It takes the addresses of the float32 rows [rows, inner], of
    their sums [rows, groups], of the packed weight, of the pairs of scale and zero [groups,
    columns, 2] and of the float32 result [rows, columns]; then the three sizes, the size of a group
    and from which to which column, the first of them that of a block; it returns 0.
    """
    module = ir.Module(f"products of int4 with {name}")
    wholes = {height: _write_block(module, name, height, COLUMNS // LANES) for height in HEIGHTS}
    lasts = {height: _write_block(module, name, height, 1) for height in HEIGHTS}
    kinds = [ADDRESS] * 5 + [WORD] * 6
    body = Function(module, "product", NUMBER, kinds, exported=True)
    build, (rows, inner, columns, group, start, stop) = body.build, body.arguments[5:]
    pair = WORD(8 if name == "float32" else 4)

    def call(block: ir.Function, row: Any, column: Any, packed: Any, stride: Any) -> None:
        x, sums, weight, scales, out = body.arguments[:5]
        first, groups = build.mul(row, inner), build.udiv(inner, group)
        result = build.add(build.mul(row, columns), column)
        starts = [
            body.address(x, build.mul(first, WORD(4))),
            body.address(sums, build.mul(build.mul(row, groups), WORD(4))),
            body.address(weight, packed),
            body.address(scales, build.mul(column, pair)),
            body.address(out, build.mul(result, WORD(4))),
        ]
        build.call(block, [*starts, inner, columns, group, stride])

    whole = build.udiv(build.sub(stop, start), WORD(COLUMNS))
    last = build.add(start, build.mul(whole, WORD(COLUMNS)))
    half = build.udiv(inner, WORD(2))
    with body.times(whole) as turn:
        column = build.add(start, build.mul(turn, WORD(COLUMNS)))
        for row, height in body.steps(WORD(0), rows, HEIGHTS):
            call(wholes[height], row, column, build.mul(column, half), WORD(COLUMNS // 2))
    left = build.sub(stop, last)
    with body.times(build.udiv(left, WORD(LANES))) as turn:
        beside = build.mul(turn, WORD(LANES))
        packed = build.add(build.mul(last, half), build.udiv(beside, WORD(2)))
        for row, height in body.steps(WORD(0), rows, HEIGHTS):
            stride = build.udiv(left, WORD(2))
            call(lasts[height], row, build.add(last, beside), packed, stride)
    build.ret(NUMBER(0))
    return str(module)


def _write_block(module: ir.Module, name: str, height: int, vectors: int) -> ir.Function:
    """The function of some rows, and of a whole block of columns or of 16 of the last ones."""
    kinds = [ADDRESS] * 5 + [WORD] * 4
    body = Function(module, f"block_{height}_{vectors}", ir.VoidType(), kinds)
    (x, sums, weight, scales, out, inner, columns, group, stride), build = (
        body.arguments,
        body.build,
    )
    zero, groups = repeated(FLOAT, LANES, 0.0), build.udiv(inner, group)

    def result(row: int, number: int) -> Any:
        at = build.mul(columns, WORD(4 * row))
        return body.address(out, at, 4 * LANES * number)

    for row in range(height):
        for number in range(vectors):
            build.store(zero, result(row, number), align=4)
    with body.times(groups) as turn:
        first = build.mul(turn, group)
        with body.summing(group, [zero] * (height * vectors)) as (index, totals):
            at = build.add(first, index)
            wide = _numbers(body, body.address(weight, build.mul(at, stride)), vectors)
            for row in range(height):
                place = build.add(build.mul(inner, WORD(row)), at)
                value = _everywhere(body, body.address(x, build.mul(place, WORD(4))))
                for number, one in enumerate(wide):
                    k = row * vectors + number
                    totals[k] = body.multiply_add(value, one, totals[k])
        pairs = [
            _scales(body, name, scales, build.mul(turn, columns), number)
            for number in range(vectors)
        ]
        for row in range(height):
            place = build.add(build.mul(groups, WORD(row)), turn)
            total = _everywhere(body, body.address(sums, build.mul(place, WORD(4))))
            for number, (scale, added) in enumerate(pairs):
                so_far = build.load(result(row, number), typ=zero.type, align=4)
                so_far = body.multiply_add(added, total, so_far)
                k = row * vectors + number
                so_far = body.multiply_add(scale, totals[k], so_far)
                build.store(so_far, result(row, number), align=4)
    build.ret_void()
    return body.function


def _numbers(body: Function, address: Any, vectors: int) -> list[Any]:
    """The numbers from -8 to 7 at an address, of 16 columns each."""
    build = body.build
    if vectors == 1:
        given = build.load(address, typ=vector(BYTE, LANES // 2), align=1)
        wide = build.zext(given, vector(NUMBER, LANES // 2))
        low, high = wide, build.lshr(wide, repeated(NUMBER, LANES // 2, 4))
        order = [i // 2 + LANES // 2 * (i % 2) for i in range(LANES)]
        places = [build.shuffle_vector(low, high, ir.Constant(vector(NUMBER), order))]
    else:
        parts = [
            build.zext(
                build.load(body.address(address, LANES * i), typ=vector(BYTE), align=1),
                vector(NUMBER),
            )
            for i in range(vectors // 2)
        ]
        places = [*parts, *(build.lshr(one, repeated(NUMBER, LANES, 4)) for one in parts)]
    # The processor looks at the lowest four bits of a place alone.
    look = body.intrinsic(
        "llvm.x86.avx512.permvar.sf.512", vector(FLOAT), vector(FLOAT), vector(NUMBER)
    )
    return [build.call(look, [_NUMBERS, one]) for one in places]


def _everywhere(body: Function, address: Any) -> Any:
    """A vector of the float at an address."""
    return float_functions.repeated(body.build, body.load(address, type_=FLOAT), LANES)


def _scales(body: Function, name: str, scales: Any, columns: Any, number: int) -> tuple[Any, Any]:
    """The scales and the zeros of 16 columns, behind those of so many columns in front of them."""
    build, kind = body.build, FLOAT if name == "float32" else _HALF
    size = 4 if name == "float32" else 2
    address = body.address(scales, build.mul(columns, WORD(2 * size)), 2 * size * LANES * number)
    both = float_functions.converted_from(build, address, kind, vector(FLOAT, 2 * LANES))
    scale, zero = (
        build.shuffle_vector(
            both,
            both.type(ir.Undefined),
            ir.Constant(vector(NUMBER), list(range(start, 2 * LANES, 2))),
        )
        for start in (0, 1)
    )
    return scale, zero
