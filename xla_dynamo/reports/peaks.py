"""What this machine can do at most, measured once: products of matrices, and copies."""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping

import torch

from xla_dynamo.process_state import kept
from xla_dynamo.runtime.cache_settings import disk_cache
from xla_dynamo.runtime.cpu.features import processor
from xla_dynamo.runtime.saved_executables import digest

log = logging.getLogger("xla_dynamo")
KIND = "peaks"
_SIZE, _BYTES, _TRIES = 1536, 128 << 20, 4
_NAMES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Peaks:
    """What was measured.

    Attributes:
        flops: floating-point operations a second in products, by HLO's name of the element type.
        bytes: read and written a second, by a copy that no cache holds.
    """

    flops: Mapping[str, float]
    bytes: float

    def bound(self, flops: float, moved: float, dtype: str) -> float:
        """The seconds that so many operations and bytes take at least (the roofline model)."""
        most = self.flops.get(dtype) or self.flops["f32"]
        return max(flops / most, moved / self.bytes)


class _Known:
    def __init__(self) -> None:
        self.peaks: dict[int, Peaks] = {}


_known = kept(_Known)


def peaks() -> Peaks:
    """The peaks of the CPU with torch's number of threads, from the disk cache or measured now.

    A measurement takes half a second.
    """
    threads = torch.get_num_threads()
    found = _known.peaks.get(threads)
    if found is None:
        found = _known.peaks[threads] = _saved_or_measured(threads)
    return found


def _saved_or_measured(threads: int) -> Peaks:
    folder, here = disk_cache(), processor()
    if folder is None or here is None:
        return measured()
    key = digest([KIND, here, str(threads), torch.__version__])
    if (data := folder.read(KIND, key)) is not None:
        try:
            read = json.loads(data)
            return Peaks({k: float(v) for k, v in read["flops"].items()}, float(read["bytes"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("disk cache: peaks are not used: %s", error)
    found = measured()
    folder.write(KIND, key, json.dumps(dataclasses.asdict(found)).encode())
    return found


def measured() -> Peaks:
    """Measure now: the best of some products of matrices and of some copies."""
    with torch.inference_mode():
        flops = {}
        for name, dtype in _NAMES.items():
            a = torch.ones(_SIZE, _SIZE, dtype=dtype)
            flops[name] = 2 * _SIZE**3 / _best(lambda a=a: a @ a)  # type: ignore[misc]
        source = torch.ones(_BYTES // 4)
        target = torch.empty_like(source)
        return Peaks(flops, 2 * _BYTES / _best(lambda: target.copy_(source)))


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
