"""The machine and the process's surroundings: what a bug report needs of them."""

import os
import pathlib
import platform
from collections.abc import Iterator

from xla_dynamo.command_line.findings import Finding

# The features of x86 and Arm processors that kernels are chosen by.
_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16"),
    *("avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "sve", "bf16", "i8mm"),
)
_VARIABLES = (
    "CPU_NUM_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "JAX_ENABLE_X64",
    "JAX_PLATFORMS",
    "OMP_NUM_THREADS",
    "PJRT_DEVICE",
    "PT_XLA_DEBUG_LEVEL",
    "TORCH_LOGS",
    "XLA_FLAGS",
)


def check_machine(cpuinfo: str = "/proc/cpuinfo") -> Iterator[Finding]:
    """The operating system, the processor and its features."""
    yield Finding("system", platform.platform())
    name, flags = _processor(pathlib.Path(cpuinfo))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("processor", f"{name}, {cores} cores for this process")
    known = [feature for feature in _FEATURES if feature in flags]
    advice = ""
    if flags and platform.machine() in ("x86_64", "AMD64") and "avx" not in flags:
        advice = "jaxlib's wheels need AVX: use another machine, or build jaxlib for this one"
    yield Finding("features", " ".join(known) or "unknown", advice)


def _processor(cpuinfo: pathlib.Path) -> tuple[str, frozenset[str]]:
    """The name of the processor, and its features where Linux tells them."""
    fields: dict[str, str] = {}
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, frozenset(f"{fields.get('flags', '')} {fields.get('Features', '')}".split())


def check_environment() -> Iterator[Finding]:
    """The environment variables that change what happens."""
    for name, value in sorted(os.environ.items()):
        if name in _VARIABLES or name.startswith(("XLA_DYNAMO_", "TORCHDYNAMO_")):
            yield Finding(name, value, _ADVICE.get((name, value), ""))


_ADVICE = {
    ("XLA_DYNAMO_DISABLE", "1"): (
        "it leaves the name openxla to torch's own entry, which needs torch_xla: unset it"
    ),
}
