"""Names of `torch_xla._XLAC`, PyTorch/XLA's extension in C++, that scripts call themselves."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

import xla_dynamo
from xla_dynamo import runtime
from xla_dynamo.jax import call_jax
from xla_dynamo.lazy.contents import cell_of
from xla_dynamo.process_state import kept
from xla_dynamo.runtime.clients import has_clients
from xla_dynamo.runtime.metrics import increment
from xla_dynamo.runtime.topology import default_devices
from xla_dynamo.torch_xla.forms import replicas
from xla_dynamo.torch_xla.forms.arenas import send_cpu_data_to_device
from xla_dynamo.torch_xla.forms.readiness import call_when_ready
from xla_dynamo.torch_xla.forms.xla_model import (
    VERSION,
    optimization_barrier_,
    set_mat_mul_precision,
    xla_real_devices,
)

Tensors = Sequence[torch.Tensor]
Devices = Sequence[Any]


class _Said:
    def __init__(self) -> None:
        self.ir_debug = False
        self.replication_devices: list[str] = []


_said = kept(_Said)


def _xla_get_default_device() -> str:
    """The name of the device: "xla:0"."""
    return str(xla_dynamo.xla_device())


def _xla_set_default_device(device: Any) -> str:
    """The name of the device before, after a check that the new one is the one that there is."""
    xla_dynamo.xla_device_hw(device)
    return _xla_get_default_device()


def _xla_get_device_ordinal(device: Any) -> int:
    """The number of a device of this process among those of all."""
    xla_dynamo.xla_device_hw(device)
    return runtime.global_ordinal()


def _xla_get_devices() -> list[str]:
    """The PJRT devices that this process's lazy devices are, as "CPU:0"."""
    return xla_real_devices()


def _xla_get_all_devices() -> list[str]:
    """The PJRT devices that the lazy devices of all processes are."""
    return replicas.xla_replication_devices()


def _xla_get_runtime_devices() -> list[str]:
    """The names of all PJRT devices."""
    return [str(told["name"]) for told in runtime.global_runtime_device_attributes()]


def _xla_device_kind(device: Any) -> str:
    """What a device computes with, as its platform calls it."""
    xla_dynamo.xla_device_hw(device)
    return str(default_devices()[0].device_kind)


def _xla_get_replication_devices() -> list[str]:
    """The devices that `_xla_set_replication_devices` was given last."""
    return list(_said.replication_devices)


def _xla_set_replication_devices(devices: Sequence[str]) -> None:
    """Remember devices; processes compute together in any case."""
    _said.replication_devices = list(devices)


def _xla_get_replication_devices_count() -> int:
    """How many devices run a program together; 0 where this process is alone."""
    size = xla_dynamo.xrt_world_size()
    return size if size > 1 else len(_said.replication_devices)


def _xla_runtime_is_initialized() -> bool:
    """Whether this process has a PJRT client."""
    return has_clients()


def _init_computation_client() -> None:
    """Make the PJRT client of the default platform."""
    default_devices()


def _xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision: bool = True) -> None:
    """Compute float32 products of later programs in full precision, or in the platform's own."""
    set_mat_mul_precision("highest" if use_full_mat_mul_precision else "default")


def _xla_step_marker(
    device: Any = "", devices: Devices = (), wait: bool = True, reset_scope: bool = True
) -> None:
    """End the step, as `torch_xla.sync` does."""
    xla_dynamo.sync(wait=wait)


def _xla_sync_live_tensors(device: Any = "", devices: Devices = (), wait: bool = True) -> None:
    """Compute all tensors that live."""
    xla_dynamo.sync(wait=wait)


def _xla_sync_multi(
    tensors: Tensors, devices: Devices = (), wait: bool = True, sync_xla_data: bool = True
) -> None:
    """Compute tensors; what does not depend on them stays pending."""
    xla_dynamo.unlazy([t for t in tensors if t.device.type == "xla"])


def _check_tensor_need_materialization(tensors: Tensors) -> list[bool]:
    """Whether each tensor is still to be computed."""
    return [t.device.type == "xla" and cell_of(t).value.record is not None for t in tensors]


def _xla_wait_device_ops(devices: Devices = ()) -> None:
    """Wait until the programs that were started are over."""
    xla_dynamo.wait_device_ops(devices)


def _xla_memory_info(device: Any = "xla:0") -> dict[str, int]:
    """The memory of the device, as `get_memory_info` tells it."""
    return xla_dynamo.get_memory_info(device)


def _xla_set_rng_seed(seed: int, device: Any = "") -> None:
    """Seed the device's random numbers."""
    xla_dynamo.manual_seed(seed)


def _xla_optimization_barrier_(tensors: list[torch.Tensor]) -> None:
    """Compute tensors before what comes later."""
    optimization_barrier_(tensors)


def _xla_tensors_from_aten(
    tensors: Tensors, devices: Devices, shardings: Sequence[Any] | None = None
) -> list[torch.Tensor]:
    """Tensors on devices, of which there is one; `shardings` has a `ShardingSpec` or None for each.

    Raises:
        ValueError: there are not as many devices, or shardings, as tensors.
    """
    specs = [None] * len(tensors) if shardings is None else shardings
    moved = []
    for tensor, device, spec in zip(tensors, devices, specs, strict=True):
        moved += send_cpu_data_to_device([tensor], device, spec)
    return moved


def _xla_increment_counter(name: str, value: int) -> None:
    """Add to a counter of the metrics."""
    increment(name, value)


def _set_ir_debug(enabled: bool) -> bool:
    """Remember the switch, and return what it was. Messages have lines of the user in any case."""
    before, _said.ir_debug = _said.ir_debug, bool(enabled)
    return before


def _get_ir_debug() -> bool:
    """What `_set_ir_debug` was given last."""
    return _said.ir_debug


def _on_ready_callback(tensor: torch.Tensor, callback: Callable[[], None]) -> None:
    """Call a function in another thread, when a tensor is computed."""
    call_when_ready(tensor, callback)


def _get_git_revs() -> dict[str, str]:
    """The commit of torch, and the release whose names these are."""
    return {"torch": str(torch.version.git_version), "xla": VERSION}


def _unsafe_buffer_pointer(tensor: torch.Tensor) -> int:
    """The address of a tensor's elements in the device's memory; it is computed first.

    The address is good until the tensor is written to or gone.
    """
    xla_dynamo.unlazy([tensor])
    return int(cell_of(tensor).value.buffer.unsafe_buffer_pointer())  # type: ignore[union-attr]


def _replace_xla_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Let a tensor show the elements of another, with its shape; returns it."""
    tensor.data = source.detach()
    return tensor


def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: Sequence[Any],
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """XLA's DotGeneral, with gradients.

    Args:
        lhs: a tensor of the device.
        rhs: another.
        dimension_numbers: the contracting dimensions of both, and () or the batch dimensions.
        precision_config: none; `torch_xla.backends.set_mat_mul_precision` sets the precision.
        preferred_element_type: the dtype of the result, in which products are summed.

    Raises:
        ValueError: a precision is given, or there are no dimensions to contract.
        RuntimeError: a tensor is on another device.
    """
    if precision_config is not None:
        raise ValueError("precision_config: call torch_xla.backends.set_mat_mul_precision instead")
    for place, tensor in (("first", lhs), ("second", rhs)):
        if tensor.device.type != "xla":
            kind = tensor.type().rpartition(".")[2].replace("Tensor", "Type")
            raise RuntimeError(
                f"Expected input tensor ({place} argument) to be an actual XLA tensor. Got: "
                f"{tensor.device.type.upper()}{kind}. Consider moving it ({place} argument) to XLA."
            )
    if not dimension_numbers:
        raise ValueError("dimension_numbers has the dimensions that are contracted, of both sides")
    contracting, *rest = dimension_numbers
    batch = rest[0] if rest and rest[0] else ((), ())
    dims = tuple(
        tuple(d % t.dim() for d in some)
        for pair in (contracting, batch)
        for some, t in zip(pair, (lhs, rhs), strict=True)
    )
    made: torch.Tensor = call_jax(_dot_general(dims, preferred_element_type), lhs, rhs)
    return made


@functools.cache
def _dot_general(dims: tuple[tuple[int, ...], ...], dtype: torch.dtype | None) -> Any:
    wanted = None if dtype is None else jnp.dtype(str(dtype).removeprefix("torch."))
    numbers = ((dims[0], dims[1]), (dims[2], dims[3]))
    return functools.partial(
        jax.lax.dot_general, dimension_numbers=numbers, preferred_element_type=wanted
    )
