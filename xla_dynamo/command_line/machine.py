"""The machine and the process's surroundings: what a bug report needs of them."""

import os
import pathlib
import platform
from collections.abc import Iterator

from xla_dynamo.command_line.findings import Finding
from xla_dynamo.errors import OptionError
from xla_dynamo.switches import TABLE, ignored, those_with_prefix, unknown
from xla_dynamo.switches.others import LOCALAPPDATA, PYTHONPATH, TERM, UNWATCHED, XDG_CACHE_HOME
from xla_dynamo.switches.ours import DISABLE
from xla_dynamo.switches.pytorch_xla import DEBUG

# The features of x86 and Arm processors that kernels are chosen by.
_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16"),
    *("avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "sve", "bf16", "i8mm"),
)
# Of each process, or of other programs too: they are no finding.
_NOT_TOLD = (DEBUG, LOCALAPPDATA, PYTHONPATH, TERM, *UNWATCHED, XDG_CACHE_HOME)
_OF_DYNAMO = "TORCHDYNAMO_"
_DISABLED = "it leaves the name openxla to torch's own entry, which needs torch_xla: unset it"


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
    """The environment variables that change what happens, their values, and misspelt ones."""
    for switch in TABLE:
        if (text := switch.text()) is None or switch in _NOT_TOLD:
            continue
        try:
            value = switch.get()
            shown, advice = _shown(value, text), _DISABLED if switch is DISABLE and value else ""
        except OptionError as error:
            shown, advice = ascii(text), str(error)
        yield Finding(switch.name, shown, advice)
    for name, text in those_with_prefix(_OF_DYNAMO).items():
        yield Finding(name, _shown(text, text))
    for name, instead in ignored().items():
        yield Finding(name, f"PyTorch/XLA's, and does nothing here: {instead}")
    for name, near in unknown().items():
        advice = "it does nothing: " + (f"did you mean {near}?" if near else "unset it")
        yield Finding(_shown(name, name), "unknown", advice)


def _shown(value: object, text: str) -> str:
    """A value, with its text where that is another one."""
    if isinstance(value, bool):
        return f"{text!r}: {'on' if value else 'off'}"
    shown = str(value) or "empty"
    return shown if shown.isprintable() else ascii(shown)
