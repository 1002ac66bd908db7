"""LLVM compiles functions for the processor that this process runs on.

A function of Python's in the path of a call costs 10 to 20 µs, and holds the interpreter's lock.
There is no compiler on the user's machine, so the functions are LLVM IR, which the package llvmlite
compiles in memory. It is imported when something is compiled: that takes 25 ms, and most programs
have no need of it.
"""

import ctypes
import importlib.util
import platform
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

# The processors that functions are written for, as LLVM's triples have them, by Python's names.
ARCHITECTURES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


class NativeCodeError(RuntimeError):
    """LLVM cannot be loaded here, or refuses what it is to compile."""


def can_compile() -> bool:
    """Whether functions are written for this processor and system, and llvmlite is installed."""
    known = sys.platform == "linux" and platform.machine() in ARCHITECTURES
    return known and importlib.util.find_spec("llvmlite") is not None


def architecture() -> str:
    """This processor's, as LLVM's triples have it."""
    return ARCHITECTURES[platform.machine()]


def optimized(text: str, machine: Any) -> Any:
    """The module of LLVM IR, verified and optimized for a target machine.

    Of LLVM's passes one runs, which puts variables in registers: with all of them a module of 500
    lines takes 90 ms, not 30, and runs no faster.

    Raises:
        RuntimeError: LLVM cannot read the text, or finds it to be wrong.
    """
    from llvmlite import binding

    module = binding.parse_assembly(text, binding.create_context())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    tuning = binding.create_pipeline_tuning_options()
    passes.run(module, binding.create_pass_builder(machine, tuning))
    return module


def function(text: str, name: str, told: str, words: int = 0, externals: Iterable[str] = ()) -> Any:
    """A function of a module, compiled for this machine, as ctypes has it; it returns an int.

    Args:
        text: the module in LLVM IR.
        name: of the function there.
        told: its name in messages.
        words: how many arguments it takes from Python, of 64 bits each.
        externals: the names of C's functions that the module calls.

    Raises:
        NativeCodeError: as `load`.
    """
    c = ctypes.CDLL(None)
    known = {n: ctypes.cast(getattr(c, n), ctypes.c_void_p).value or 0 for n in externals}
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * words)
    made: Any = kind(load(text, known)[name])
    made.__name__ = told
    return made


def load(text: str, externals: Mapping[str, int]) -> dict[str, int]:
    """Compile a module for this machine into memory of its own, for good.

    Args:
        text: LLVM IR.
        externals: the addresses of the functions that it declares.

    Returns:
        The addresses of the functions that it defines, private ones left out.

    Raises:
        NativeCodeError: LLVM cannot be loaded, or refuses the module; or the system gives this
            process no memory whose contents run, which XLA:CPU needs too.
    """
    with _compiling:
        try:
            return _load(text, externals)
        except Exception as error:  # another release, or half of one, may raise anything
            raise NativeCodeError(f"llvmlite does not work here: {error}") from error


def _load(text: str, externals: Mapping[str, int]) -> dict[str, int]:
    from llvmlite import binding

    binding.check_jit_execution()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()  # for what is written as an assembler has it
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
    )
    module = optimized(text, machine)
    defined = [
        function.name
        for function in module.functions
        if not function.is_declaration and function.linkage is binding.Linkage.external
    ]
    engine = binding.create_mcjit_compiler(module, machine)
    for name, address in externals.items():
        engine.add_global_mapping(module.get_function(name), address)
    engine.finalize_object()
    # It holds the memory of the functions, whose addresses XLA and threads of its pool have. Python
    # must not collect it, not even when the process ends: half of llvmlite may be gone by then.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return {name: engine.get_function_address(name) for name in defined}


_compiling = threading.Lock()
