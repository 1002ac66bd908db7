"""The options of XLA that every program is compiled with, unless the user says otherwise.

bench/RESULTS.md ("XLA's options") has the effect of each.
"""

from collections.abc import Mapping
from typing import Any

from xla_dynamo.process_state import kept
from xla_dynamo.switches.others import XLA_FLAGS

# YNNPACK for matrix products, where it beats XLA's own, but not for sums and what surrounds them:
# there it has large intermediate values written to memory that XLA's own fusions never store. And
# an order of execution that needs little memory: the other one is for programs of many small
# operators side by side, and large ones use all cores by themselves. Sums are split before XLA has
# them (`lowerings/passes/split_reductions.py`).
OF_PLATFORM: Mapping[str, Mapping[str, Any]] = {
    "cpu": {
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        "xla_disable_hlo_passes": "tree_reduction_rewriter",
    }
}
# Of programs for several devices: how long, in seconds, one device may wait for the others before
# XLA warns, and before it ends the process. Eight devices on two cores are far apart at times.
OF_SHARDED: Mapping[str, Mapping[str, Any]] = {
    "cpu": {
        "xla_cpu_collective_call_warn_stuck_seconds": 600,
        "xla_cpu_collective_call_terminate_timeout_seconds": 3600,
        "xla_cpu_collective_timeout_seconds": 3600,
    }
}


class _Refused:
    def __init__(self) -> None:
        self.names: set[str] = set()  # of options that this version of XLA lacks


_refused = kept(_Refused)


def with_defaults(platform: str, given: Mapping[str, Any], devices: int = 1) -> dict[str, Any]:
    """The user's options, and ours where neither they nor XLA_FLAGS say anything."""
    flags = XLA_FLAGS.get()
    defaults = _defaults(platform, devices)
    ours = {k: v for k, v in defaults.items() if k not in _refused.names and k not in flags}
    return {**ours, **given}


def _defaults(platform: str, devices: int) -> dict[str, Any]:
    of_sharded = OF_SHARDED.get(platform, {}) if devices > 1 else {}
    return {**OF_PLATFORM.get(platform, {}), **of_sharded}


def refused(platform: str, given: Mapping[str, Any], error: Exception, devices: int = 1) -> bool:
    """Whether a compilation failed for want of an option of ours, which is then set no more.

    XLA's options come and go with its versions; the user's own are never left out.
    """
    text = str(error)
    names = {k for k in _defaults(platform, devices) if k in text and k not in given}
    new = names - _refused.names
    _refused.names.update(new)
    return bool(new)
