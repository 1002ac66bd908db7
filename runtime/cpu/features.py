"""The processor that machine code is made for, as text that differs where the code may."""

import functools
import platform
import re
import subprocess
import sys

from xla_dynamo.runtime.cpu.shares import threads

# Lines of /proc/cpuinfo that tell one processor from another: on x86, and on Arm.
_LINES = re.compile(
    r"^(vendor_id|cpu family|model|model name|stepping|flags"
    r"|CPU implementer|CPU architecture|CPU variant|CPU part|CPU revision|Features)\s*:\s*(.*)$",
    re.MULTILINE,
)


@functools.cache
def processor() -> str | None:
    """The model and the features of the processors, and how many threads XLA plans for.

    None where nothing tells the features.
    """
    features = _features()
    if features is None:
        return None
    return "\n".join([sys.platform, platform.machine(), str(threads()), features])


@functools.cache
def family() -> str:
    """The processor's family, by which forms of operations are chosen; "" where nothing tells it.

    It is the vendor and the widest vectors, and "amx" where there are tiles: "intel avx512 amx".
    """
    features = (_features() or "").lower()
    vendors = {"genuineintel": "intel", "authenticamd": "amd"}
    vendor = next((name for text, name in vendors.items() if text in features), "")
    flags = set(features.split())
    vectors = next((name for name in ("avx512f", "avx2") if name in flags), "")
    if not vendor or not vectors:
        return ""
    return " ".join([vendor, vectors.removesuffix("f"), *["amx"] * ("amx_tile" in flags)])


@functools.cache
def has(name: str) -> bool:
    """Whether the processor has a feature, by the name that Linux gives it."""
    return name in (_features() or "").lower().split()


def _features() -> str | None:
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo") as file:
                found = {f"{name}: {value}" for name, value in _LINES.findall(file.read())}
        except OSError:
            return None
        known = any(line.startswith(("flags", "Features")) for line in found)
        return "\n".join(sorted(found)) if known else None
    if sys.platform == "darwin":
        run = subprocess.run(
            ["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"], capture_output=True, text=True
        )
        return run.stdout if run.returncode == 0 and run.stdout else None
    return None
