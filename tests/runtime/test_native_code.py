"""What LLVM compiles: for both architectures, its numbers to the last bit, and who pays for it."""

import ctypes
import io
import re
import sys

import numpy as np
import pytest
import torch

from tests import fresh_process
from tests.compiling import watched
from tests.freezing import check_inference
from tests.packing import Block, always, needs_onednn, packed_calls
from xla_dynamo.errors import StorageError
from xla_dynamo.kernels import libraries
from xla_dynamo.programs import storage, targets
from xla_dynamo.programs.storage import read_program, write_program
from xla_dynamo.runtime.cpu import call_scripts, native_code
from xla_dynamo.runtime.cpu.native_code import NativeCodeError
from xla_dynamo.runtime.cpu.script_layout import TARGET

__all__ = ["always"]  # a fixture
compiles = pytest.mark.skipif(not native_code.can_compile(), reason="nothing compiles here")

# Of each function, what its assembly has on x86-64 and on AArch64, in whatever order.
PARTS = {
    "handler": (
        r"other_handler .* malloc .* call\w* \*136\(",
        r"other_handler .* malloc .* #136\] .* blr",
    ),
    "work": (
        r"omp_get_max_threads .* lock xadd\w .* lock (inc|add)q .* omp_set_num_threads",
        r"omp_get_max_threads .* ldxr .* stxr .* stlxr .* omp_set_num_threads",
    ),
    "run": (r"call\w* \*.* test.? .* ret", r"blr .* cbn?z .* ret"),
    "release": (r"lock (dec|sub|xadd)\w* .* free", r"ldaxr .* stlxr .* free"),
    "help": (r"leave .* work .* release .* stay", r"leave .* work .* release .* stay"),
    "core": (r"sched_getcpu", r"sched_getcpu"),
    "leave": (
        r"sched_getaffinity .* sched_setaffinity .* sched_setaffinity",
        r"sched_getaffinity .* sched_setaffinity .* sched_setaffinity",
    ),
    "give": (r"staying .* lock cmpxchg", r"staying .* ldaxr .* stlxr"),
    "stay": (
        r"staying .* lock cmpxchg .* pause .* sched_yield .* xchgq",
        r"staying .* ldaxr .* stlxr .* yield .* sched_yield",
    ),
    "wait": (r"pause .* sched_yield .* usleep", r"ldar .* yield .* sched_yield .* usleep"),
    "error": (r"call\w* \*48\(", r"#48\] .* blr"),
    "forget": (r"stmxcsr .* \$-64, .* ldmxcsr", r"mrs x\d+, FPSR .* msr FPSR, x\d"),
    "invalid": (r"stmxcsr .* \$1,", r"mrs x\d+, FPSR .* #0x1"),
    "clamp": (r"maxps .* minps .* maxss .* minss", r"fcmgt v\d+\.4s.* bsl .* fcsel"),
    "clamp_bfloat16": (
        r"maxps .* minps .* maxss",
        r"v\d+\.4h, #16 .* fcmgt .* fcsel",
    ),
}


@compiles
@pytest.mark.parametrize("knows_cores", [True, False])
@pytest.mark.parametrize("number", [0, 1], ids=["x86_64", "aarch64"])
def test_both_architectures(number, knows_cores):
    """The module is right for LLVM, and each function does what it must by the instructions."""
    from llvmlite import binding

    from xla_dynamo.runtime.cpu import script_runner

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    architecture = ("x86_64", "aarch64")[number]
    triple = f"{architecture}-unknown-linux-gnu"
    machine = binding.Target.from_triple(triple).create_target_machine(opt=2)
    module = native_code.optimized(script_runner.written(architecture, knows_cores), machine)
    text = re.sub(r"[ \t]+", " ", machine.emit_assembly(module))
    bodies = dict(re.findall(r"^(\w+):\n(.*?)^\.Lfunc_end", text, re.MULTILINE | re.DOTALL))
    assert bodies.keys() == PARTS.keys()
    if not knows_cores:
        assert "sched_getcpu" not in text
        del bodies["core"], bodies["leave"]
    for name, body in bodies.items():
        lines = [line.strip() for line in body.splitlines() if not line.startswith((" .", "\t."))]
        body = " ".join(lines) + " "
        for part in PARTS[name][number].split(" .* "):
            assert re.search(part, body), f"{name} has no {part}: {body}"
        assert not re.search(r"\b(int3|ud2|brk|udf|hlt)\b", body), name
        assert re.search(r"\b(ret\w?|jmp\w?)\b", body), name
    called = set(script_runner.EXTERNALS)
    assert {f.name for f in module.functions if f.is_declaration} >= called


@pytest.fixture(scope="module")
def functions():
    """Those of `float_functions`, as functions of ctypes."""
    if not native_code.can_compile():
        pytest.skip("nothing compiles here")
    c = ctypes.CDLL(None)
    addresses = call_scripts.compiled((c.abs, c.abs))  # which are not called
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int)(addresses[name])
        for name in call_scripts.FLOAT_FUNCTIONS
    }


def clamp(functions, values, low, high):
    """Clamp an array in place, as scripts do; of integers of 16 bits it is one of bfloat16."""
    bounds = (ctypes.c_float * 2)(low, high)
    name = "clamp" if values.dtype == np.float32 else "clamp_bfloat16"
    call = ctypes.cast(functions[name], ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 6))
    assert call(values.ctypes.data, len(values), ctypes.addressof(bounds), 1, 2, 3) == 0


SPECIAL = [0.0, -0.0, 1.0, -1.0, 6.0, 1e-45, -1e-45, 3e38, np.inf, -np.inf, np.nan]
NANS = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF812345, 0x7FFFFFFF]  # quiet and signaling


@pytest.mark.parametrize("low", SPECIAL)
def test_clamp_to_the_last_bit(functions, low):
    """As maxps of (low, x) and minps of (high, that): the second one where the first is no better.

    So NaN stays the NaN that it is, and -0 stays -0 between bounds of 0.
    """
    random = np.random.default_rng(0)
    nans = np.array(NANS, np.uint32).view(np.float32)
    some = np.concatenate([np.array(SPECIAL, np.float32), nans])
    others = random.normal(size=39).astype(np.float32)
    values = np.concatenate([some, random.permutation(some), others])
    for high in SPECIAL:
        for start, count in ((0, len(values)), (1, 17), (3, 16), (0, 15), (2, 1), (0, 0), (1, 32)):
            actual, expected = values[start:].copy(), values[start:].copy()
            clamp(functions, actual[:count], low, high)
            part = expected[:count]
            with np.errstate(invalid="ignore"):
                part[np.float32(low) > part] = low
                part[np.float32(high) < part] = high
            np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(("low", "high"), [(0.0, np.inf), (0.0, 6.0), (-0.0, 0.0), (-1.5, np.nan)])
def test_clamp_of_every_bfloat16(functions, low, high):
    """As those of the same numbers in float32."""
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = (every.astype(np.uint32) << 16).view(np.float32)
    clamp(functions, wide, low, high)
    for count in (len(every), 5):
        actual = every[-count:].copy()
        clamp(functions, actual, low, high)
        np.testing.assert_array_equal(actual, wide.view(np.uint32)[-count:] >> 16)


def test_notes_of_exceptions(functions):
    """`forget` clears them, and nothing else of the register; `invalid` tells that one is there."""
    c = ctypes.CDLL("libm.so.6")
    every = sum({"x86_64": [1, 4, 8, 16, 32]}.get(native_code.architecture(), [1, 2, 4, 8, 16]))
    up = {"x86_64": 0x800}.get(native_code.architecture(), 0x400000)
    before = c.fegetround()
    try:
        assert c.fesetround(up) == 0
        c.feraiseexcept(every)
        assert functions["invalid"]() == 1
        assert functions["forget"]() == 0
        assert functions["invalid"]() == 0
        c.feraiseexcept(every & ~1)
        assert functions["invalid"]() == 0
        assert functions["forget"]() == 0
        assert c.fegetround() == up
    finally:
        c.fesetround(before)


# --- who pays, and where it is missing -----------------------------------------------------------

PLAIN = """
import sys, torch, xla_dynamo
assert "llvmlite" not in sys.modules
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
x = torch.randn(2, 4)
with torch.no_grad():
    run = torch.compile(model, backend="openxla", options={"freeze": True})
    torch.testing.assert_close(run(x), model(x))
assert "llvmlite" not in sys.modules
"""


def test_programs_that_need_nothing_of_it_do_not_import_it():
    fresh_process.python(PLAIN, XLA_DYNAMO_CACHE_DIR="")


MISSING = """
import sys
sys.modules["llvmlite"] = None
import torch
from xla_dynamo.kernels import onednn_convolution
from xla_dynamo.kernels.libraries import libraries_of
onednn_convolution.FEWEST_IN_CONVOLUTION = 0
print("onednn_packed" in libraries_of("cpu"))
model, x = torch.nn.Conv2d(8, 8, 3).eval(), torch.randn(2, 8, 6, 6)
with torch.no_grad():
    run = torch.compile(model, backend="openxla", options={"freeze": True})
    torch.testing.assert_close(run(x), model(x))
"""


def test_without_llvmlite_no_weights_are_packed():
    assert fresh_process.python(MISSING, XLA_DYNAMO_CACHE_DIR="").split() == ["False"]


@needs_onednn
@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "SyntaxError"])
def test_an_llvmlite_that_cannot_be_imported_is_as_good_as_none(error, tmp_path):
    package = tmp_path / "llvmlite" / "__init__.py"
    package.parent.mkdir()
    package.write_text(f"raise {error}('broken')")
    first = f"sys.path[:0] = [{str(tmp_path)!r}]"
    broken = MISSING.replace('sys.modules["llvmlite"] = None', first)
    assert fresh_process.python(broken, XLA_DYNAMO_CACHE_DIR="").split() == ["True"]


@needs_onednn
def test_where_llvmlite_does_not_work_no_weights_are_packed(monkeypatch):
    monkeypatch.setattr(targets, "can_execute_packed", lambda: False)
    model = Block()
    run, built = watched(model, fullgraph=True, freeze=True)
    check_inference(run, torch.randn(2, 8, 6, 6), eager=model)
    assert TARGET not in str(built[0].program.module)


@needs_onednn
def test_where_llvmlite_does_not_work_programs_with_packed_weights_are_not_read(monkeypatch):
    model, file = Block(), io.BytesIO()
    run, built = watched(model, fullgraph=True, freeze=True)
    check_inference(run, torch.randn(2, 8, 6, 6), eager=model)
    write_program(built[0].program, file)
    assert packed_calls(read_program(file)) == packed_calls(built[0].program)
    monkeypatch.setattr(storage, "can_execute_packed", lambda: False)
    with pytest.raises(StorageError, match="nothing here can execute"):
        read_program(file)


@pytest.mark.parametrize("missing", ["can_pack", "register"])
def test_what_packed_weights_need(monkeypatch, missing):
    def fails(_):
        raise NativeCodeError

    monkeypatch.setattr(libraries, "can_pack", lambda: missing != "can_pack")
    monkeypatch.setattr(call_scripts, "register", fails)
    assert not libraries.can_execute_packed.__wrapped__()


def test_a_fault_of_native_code(monkeypatch):
    assert libraries.fault_of_native_code() == ""
    monkeypatch.setattr(libraries, "can_compile", lambda: True)
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert "llvmlite does not work here" in libraries.fault_of_native_code()


@compiles
def test_what_llvm_refuses_is_an_error_of_ours(monkeypatch):
    with pytest.raises(NativeCodeError, match="llvmlite does not work here: LLVM IR parsing error"):
        native_code.load("define nonsense", {})
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(NativeCodeError, match="llvmlite does not work here"):
        native_code.load("", {})
    monkeypatch.delitem(sys.modules, "xla_dynamo.runtime.cpu.script_runner", raising=False)
    monkeypatch.delattr("xla_dynamo.runtime.cpu.script_runner", raising=False)
    monkeypatch.setitem(sys.modules, "xla_dynamo.runtime.cpu.float_functions", None)
    with pytest.raises(NativeCodeError, match="llvmlite cannot be imported"):
        call_scripts.compiled((None, None))
    assert not native_code.can_compile()
