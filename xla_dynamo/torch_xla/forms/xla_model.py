"""Names of `torch_xla.core.xla_model`, `torch_xla.runtime` and `torch_xla.backends`."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import xla_dynamo
from xla_dynamo.switches.others import MASTER_ADDR
from xla_dynamo.torch_private import pytree

# The release whose names these are.
VERSION = "2.9.0+xla_dynamo"
_SMOOTHING = 0.4


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the lazy device."""
    return tensor.device.type == "xla"


def get_xla_supported_devices(
    max_devices: int | str | None = None, kind: str | None = None
) -> list[str] | None:
    """The devices of this process, as "xla:0"; None if none is of the kind.

    Releases before 2.5 take the kind first, as "TPU".
    """
    if isinstance(max_devices, str):
        max_devices, kind = None, max_devices
    found = [str(device) for device in xla_dynamo.devices()]
    if kind is not None:
        found = [device for device in found if xla_dynamo.xla_device_hw(device) == kind]
    return found[:max_devices] or None


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """The PJRT devices that lazy devices are, as "CPU:0"."""
    kinds = map(xla_dynamo.xla_device_hw, devices or xla_dynamo.devices())
    return [f"{kind}:{number}" for number, kind in enumerate(kinds)]


def parse_xla_device(device: str) -> tuple[str, int] | None:
    """The kind and the number of a device such as "CPU:0"; None if a text is none."""
    found = re.fullmatch(r"([A-Z]+|xla):(\d+)", device)
    return (found[1], int(found[2])) if found else None


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Compute tensors before what comes later: a program of their own, so nothing is fused."""
    xla_dynamo.unlazy([tensor for tensor in tensors if is_xla_tensor(tensor)])


def check_view_sharing(value: Any) -> None:
    """Nothing: views of one memory stay views here, so that no tensor of a value is left behind."""


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of an optimizer's parameters, where they have some."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad.detach() for p in every if p.grad is not None]


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """A value with its tensors of the device on the host; as it is, computed, if not to convert."""
    if not convert:
        tensors = [t for t in pytree.tree_leaves(data) if isinstance(t, torch.Tensor)]
        xla_dynamo.unlazy([t for t in tensors if is_xla_tensor(t)])
        return data
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, data)


class RateTracker:
    """Counts what is done, and tells how much that is a second."""

    def __init__(self, smooth_factor: float | None = None) -> None:
        """Begin to count: a factor of 0 leaves rates as they are, and one near 1 smooths them."""
        self._factor = _SMOOTHING if smooth_factor is None else smooth_factor
        self._started = self._asked = time.time()
        self._before, self._now = 0, 0
        self._rate: float | None = None

    def add(self, count: int) -> None:
        """Count something that is done."""
        self._now += count

    def rate(self) -> float:
        """How much was done a second since this was asked, smoothed by the answers before."""
        now = time.time()
        seconds = now - self._asked
        if seconds <= 0:
            return self._rate or 0.0
        rate = self._now / seconds
        if self._rate is not None:
            rate = self._factor * self._rate + (1 - self._factor) * rate
        self._before, self._now, self._asked = self._before + self._now, 0, now
        self._rate = rate
        return rate

    def global_rate(self) -> float:
        """How much was done a second from the start on."""
        seconds = time.time() - self._started
        return (self._before + self._now) / seconds if seconds > 0 else 0.0


def fork_rng(device: Any = None, enabled: bool = True) -> Any:
    """A block behind which random numbers go on as if it had drawn none."""
    return torch.random.fork_rng(enabled=enabled, device_type="xla")


def get_master_ip() -> str:
    """The address of the first process of a job: MASTER_ADDR, or this machine."""
    return MASTER_ADDR.get() or "127.0.0.1"


def get_num_cached_compilation_graph() -> int:
    """How many graphs were compiled in this process."""
    return int((xla_dynamo.metrics.metric_data("CompileTime") or (0,))[0])


def is_bf16_supported() -> bool:
    """Whether the device computes in bfloat16: every platform of XLA does."""
    return True


def get_mat_mul_precision() -> str:
    """The precision of float32 products: "highest", "high" or "default"."""
    found = torch.get_float32_matmul_precision()
    return "default" if found == "medium" else found


def set_mat_mul_precision(precision: str) -> None:
    """Set the precision of float32 products of later programs.

    Raises:
        ValueError: it is none of "highest", "high" and "default".
    """
    if precision not in ("highest", "high", "default"):
        raise ValueError(f'{precision!r} is none of "highest", "high" and "default"')
    torch.set_float32_matmul_precision("medium" if precision == "default" else precision)


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Compute each operator at once, or not, while a block runs."""
    before = xla_dynamo.is_eager_mode()
    xla_dynamo.eager_mode(enable)
    try:
        yield
    finally:
        xla_dynamo.eager_mode(before)
