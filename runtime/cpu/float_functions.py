"""Functions for scripts, in LLVM IR, by which a library's floats become torch's.

`forget` clears what the thread has noted of exceptions (of IEEE 754). `invalid` fails if an
operation was invalid since, as a maximum with NaN is. Both are written for the processor: for x86,
C's `feclearexcept` also writes the registers of the unit of 1980, and takes ten times as long.

`clamp` brings floats between two bounds, as torch does: NaN stays NaN.
"""

from typing import Any

from llvmlite import ir

from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD, Function

_FLOAT, _FLOAT_BYTES = ir.FloatType(), 4
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
    """`clamp`: x is low if low > x, and that is high if high > it does not hold.

    A comparison with NaN does not hold, nor one of -0 with 0, so both stay as they are. LLVM makes
    vectors of it, as wide as the processor has them.
    """
    body = Function(module, "clamp", NUMBER, [ADDRESS, WORD, ADDRESS], exported=True)
    (values, count, bounds), build = body.arguments, body.build
    low, high = (body.load(bounds, at, type_=_FLOAT) for at in (0, _FLOAT_BYTES))
    with body.times(count) as index:
        at = build.mul(index, WORD(_FLOAT_BYTES))
        value = body.load(values, at, type_=_FLOAT)
        value = build.select(build.fcmp_ordered(">", low, value), low, value)
        value = build.select(build.fcmp_ordered("<", high, value), high, value)
        body.store(value, values, at)
    build.ret(NUMBER(0))
