"""Functions for scripts, in LLVM IR, by which a library's floats become torch's.

`forget` clears what the thread has noted of exceptions (of IEEE 754). `invalid` fails if an
operation was invalid since, as a maximum with NaN is. Both are written for the processor: on x86,
C's `feclearexcept` also reads and writes the floating-point unit of 1980, which takes 60 ns more.

`clamp` and `clamp_bfloat16` bring numbers between two bounds, as torch does: NaN stays NaN.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, BYTE, NUMBER, WORD, Function

_FLOAT = ir.FloatType()
_HALF = ir.IntType(16)  # a bfloat16: the first bits of a float
BYTES = {_FLOAT: 4, _HALF: 2, BYTE: 1}
_LANES = 16  # of a vector, which LLVM divides into as many as the processor needs
# The register's bits that are notes of exceptions; on both processors the lowest says "invalid".
_NOTES, _INVALID = {"x86_64": 0x3F, "aarch64": 0x9F}, 1
# What reads and writes the register: on x86 by way of memory.
_READ = {"x86_64": "llvm.x86.sse.stmxcsr", "aarch64": "llvm.aarch64.get.fpsr"}
_WRITE = {"x86_64": "llvm.x86.sse.ldmxcsr", "aarch64": "llvm.aarch64.set.fpsr"}


def write_float_functions(module: ir.Module, architecture: str) -> None:
    """Write `forget`, `invalid`, `clamp` and `clamp_bfloat16` into a module, as scripts call them.

    The first two take nothing. The others take the address of numbers, how many there are, and the
    address of the lower and the upper bound in float32, which are numbers of the dtype.
    """
    nothing = ir.VoidType()
    if architecture == "x86_64":
        kinds = [ir.FunctionType(nothing, [ADDRESS])] * 2
    else:
        kinds = [ir.FunctionType(WORD, []), ir.FunctionType(nothing, [WORD])]
    read = ir.Function(module, kinds[0], _READ[architecture])
    write = ir.Function(module, kinds[1], _WRITE[architecture])

    body = Function(module, "forget", NUMBER, [], exported=True)
    kept = NUMBER(0xFFFFFFFF ^ _NOTES[architecture])
    _write_register(body, write, body.build.and_(_register(body, read), kept))
    body.build.ret(NUMBER(0))

    body = Function(module, "invalid", NUMBER, [], exported=True)
    body.build.ret(body.build.and_(_register(body, read), NUMBER(_INVALID)))

    _write_clamp(module, "clamp", _FLOAT)
    _write_clamp(module, "clamp_bfloat16", _HALF)


def _register(body: Function, read: ir.Function) -> Any:
    """The register of notes, 32 bits."""
    if not read.args:
        return body.build.trunc(body.build.call(read, []), NUMBER)
    place = body.variable(NUMBER)
    body.build.call(read, [place])
    return body.build.load(place, typ=NUMBER)


def _write_register(body: Function, write: ir.Function, value: Any) -> None:
    if write.args[0].type is WORD:
        body.build.call(write, [body.build.zext(value, WORD)])
    else:
        place = body.variable(NUMBER)
        body.build.store(value, place)
        body.build.call(write, [place])


def _write_clamp(module: ir.Module, name: str, kind: ir.Type) -> None:
    """A clamp of numbers: y is low if low > x, else x; and z is high if high < y, else y.

    No comparison with NaN holds, nor one of -0 with 0, so both stay as they are.
    """
    body = Function(module, name, NUMBER, [ADDRESS, WORD, ADDRESS], exported=True)
    size = BYTES[kind]
    (values, count, bounds), build = body.arguments, body.build
    ends = [body.load(bounds, at, type_=_FLOAT) for at in (0, 4)]
    vectors = [repeated(build, end) for end in ends]
    whole = build.udiv(count, WORD(_LANES))
    with body.times(whole) as index:
        at = build.mul(index, WORD(_LANES * size))
        _clamp_at(body, body.address(values, at), kind, vectors)
    done = build.mul(whole, WORD(_LANES))
    with body.times(build.sub(count, done)) as index:
        at = build.mul(build.add(done, index), WORD(size))
        _clamp_at(body, body.address(values, at), kind, ends)
    build.ret(NUMBER(0))


def repeated(build: ir.IRBuilder, value: Any, lanes: int = _LANES) -> Any:
    """A vector of a float."""
    vector = ir.VectorType(_FLOAT, lanes)
    first = build.insert_element(vector(ir.Undefined), value, NUMBER(0))
    places = ir.VectorType(NUMBER, lanes)(None)
    return build.shuffle_vector(first, vector(ir.Undefined), places)


def converted_from(build: ir.IRBuilder, address: Any, kind: ir.Type, wanted: ir.Type) -> Any:
    """What is at an address, floats, bfloat16s or int8s, as a float or a vector of them."""
    value = build.load(address, typ=_like(wanted, kind), align=BYTES[kind])
    if kind is BYTE:
        return build.sitofp(build.sext(value, _like(wanted, NUMBER)), wanted)
    if kind is not _HALF:
        return value
    return build.bitcast(
        build.shl(build.zext(value, _like(wanted, NUMBER)), _shift(wanted)), wanted
    )


def converted_to(build: ir.IRBuilder, value: Any, kind: ir.Type) -> Any:
    """A float or a vector of them as what is stored: itself, or bfloat16s, rounded to even.

    What is added before the lower bits are cut would make an infinity of some NaN: these get a bit.
    """
    if kind is not _HALF:
        return value
    wide = _like(value.type, NUMBER)
    bits, shift = build.bitcast(value, wide), _shift(value.type)
    is_odd = build.and_(build.lshr(bits, shift), _all(wide, 1))
    rounded = build.add(bits, build.add(is_odd, _all(wide, 0x7FFF)))
    is_number = build.fcmp_ordered("ord", value, value)
    kept = build.select(is_number, rounded, build.or_(bits, _all(wide, 0x400000)))
    return build.trunc(build.lshr(kept, shift), _like(value.type, kind))


def _clamp_at(body: Function, address: Any, kind: ir.Type, ends: Sequence[Any]) -> None:
    """Clamp what is at an address: a number, or a vector of them if the ends are vectors."""
    build, (low, high) = body.build, ends
    value = converted_from(build, address, kind, low.type)
    value = build.select(build.fcmp_ordered(">", low, value), low, value)
    value = build.select(build.fcmp_ordered("<", high, value), high, value)
    if kind is _HALF:
        bits = build.lshr(build.bitcast(value, _like(low.type, NUMBER)), _shift(low.type))
        value = build.trunc(bits, _like(low.type, kind))
    build.store(value, address, align=BYTES[kind])


def _like(given: ir.Type, kind: ir.Type) -> ir.Type:
    """A type, or the type of a vector of it if another type is one of a vector."""
    return ir.VectorType(kind, given.count) if isinstance(given, ir.VectorType) else kind


def _shift(given: ir.Type) -> Any:
    """The bits that a float has more than a bfloat16, once or in each element of a vector."""
    return _all(_like(given, NUMBER), 16)


def _all(kind: ir.Type, number: int) -> Any:
    """A number, once or in each element of a vector."""
    vector = isinstance(kind, ir.VectorType)
    return ir.Constant(kind, [number] * kind.count if vector else number)
