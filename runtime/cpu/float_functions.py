"""Functions for scripts, in LLVM IR, by which a library's floats become torch's.

`forget` clears what the thread has noted of exceptions (of IEEE 754). `invalid` fails if an
operation was invalid since, as a maximum with NaN is. Both are written for the processor: on x86,
C's `feclearexcept` also reads and writes the floating-point unit of 1980, which takes 60 ns more.

`clamp` brings floats between two bounds, as torch does: NaN stays NaN.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD, Function

_FLOAT, _FLOAT_BYTES = ir.FloatType(), 4
_LANES = 16  # of a vector, which LLVM divides into as many as the processor needs
# The register's bits that are notes of exceptions; on both processors the lowest says "invalid".
_NOTES, _INVALID = {"x86_64": 0x3F, "aarch64": 0x9F}, 1
# What reads and writes the register: on x86 by way of memory.
_READ = {"x86_64": "llvm.x86.sse.stmxcsr", "aarch64": "llvm.aarch64.get.fpsr"}
_WRITE = {"x86_64": "llvm.x86.sse.ldmxcsr", "aarch64": "llvm.aarch64.set.fpsr"}


def write_float_functions(module: ir.Module, architecture: str) -> None:
    """Write `forget`, `invalid` and `clamp` into a module, as scripts call them.

    The first two take nothing. `clamp` takes the address of floats, their number, and the address
    of the lower and the upper bound.
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

    _write_clamp(module)


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


def _write_clamp(module: ir.Module) -> None:
    """`clamp`: y is low if low > x, else x; and z is high if high < y, else y.

    No comparison with NaN holds, nor one of -0 with 0, so both stay as they are.
    """
    body = Function(module, "clamp", NUMBER, [ADDRESS, WORD, ADDRESS], exported=True)
    (values, count, bounds), build = body.arguments, body.build
    ends = [body.load(bounds, at, type_=_FLOAT) for at in (0, _FLOAT_BYTES)]
    vectors = [_repeated(build, end) for end in ends]
    whole = build.udiv(count, WORD(_LANES))
    with body.times(whole) as index:
        _clamp_at(
            body, body.address(values, build.mul(index, WORD(_LANES * _FLOAT_BYTES))), vectors
        )
    done = build.mul(whole, WORD(_LANES))
    with body.times(build.sub(count, done)) as index:
        at = build.mul(build.add(done, index), WORD(_FLOAT_BYTES))
        _clamp_at(body, body.address(values, at), ends)
    build.ret(NUMBER(0))


def _repeated(build: ir.IRBuilder, value: Any) -> Any:
    """A vector of a float."""
    vector = ir.VectorType(_FLOAT, _LANES)
    first = build.insert_element(vector(ir.Undefined), value, NUMBER(0))
    places = ir.VectorType(NUMBER, _LANES)(None)
    return build.shuffle_vector(first, vector(ir.Undefined), places)


def _clamp_at(body: Function, address: Any, ends: Sequence[Any]) -> None:
    """Clamp what is at an address: a float, or a vector of them as the ends are."""
    build, (low, high) = body.build, ends
    value = build.load(address, typ=low.type, align=_FLOAT_BYTES)
    value = build.select(build.fcmp_ordered(">", low, value), low, value)
    value = build.select(build.fcmp_ordered("<", high, value), high, value)
    build.store(value, address, align=_FLOAT_BYTES)
