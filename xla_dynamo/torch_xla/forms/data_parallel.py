"""Names of `torch_xla.distributed.data_parallel`, for the one device of a process."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

import xla_dynamo
from xla_dynamo.torch_xla.forms.loaders import ParallelLoader


class Context:
    """What a loop keeps for its device from one epoch to the next, as attributes.

    Attributes:
        device: the device.
    """

    def __init__(self, device: Any) -> None:
        """Take the device."""
        self.device = device

    def getattr_or(self, name: str, defval: Any) -> Any:
        """An attribute, which is made if it is not there or None.

        Args:
            name: the attribute's name.
            defval: its value, or a function that makes it.
        """
        value = getattr(self, name, None)
        if value is None:
            value = defval() if callable(defval) else defval
            setattr(self, name, value)
        return value


class DataParallel:
    """Runs a loop over batches with a copy of a model on the device of this process.

    For several devices, start more processes by `torch_xla.launch`, or shard the batch by
    `xs.mark_sharding`.

    Args:
        network: a model, or a function that makes one.
        device_ids: the one device; all of this process unless given. With none of them, the model
            runs where it is.
        kwargs: arguments of `ParallelLoader`.

    Attributes:
        devices: the names of the devices.
        models: the model of each.

    Raises:
        ValueError: there are several devices.
        RuntimeError: there is no device, and the model is on several.
    """

    def __init__(
        self,
        network: nn.Module | Callable[[], nn.Module],
        device_ids: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy the model to the device."""
        given = xla_dynamo.devices() if device_ids is None else list(device_ids)
        if len(given) > 1:
            raise ValueError(
                f"there is one device, 'xla:0', in each process, and not {len(given)}: start "
                "processes by torch_xla.launch, or shard the batch by xs.mark_sharding"
            )
        module = network if isinstance(network, nn.Module) else network()
        self._options, self._is_native = kwargs, not given
        device = torch.device(given[0]) if given else _device_of(module)
        self.models = [copy.deepcopy(module).to(device) if given else module]
        self.devices = [str(device)]
        self._contexts = [Context(device)]

    def __call__(
        self, loop_fn: Callable[..., Any], loader: Iterable[Any], batchdim: int = 0, **kwargs: Any
    ) -> list[Any]:
        """Run a loop once through a loader.

        Args:
            loop_fn: called with the model, the batches on its device, the device and a `Context`.
                Without a device the batches are numbered.
            loader: gives batches.
            batchdim: as in PyTorch/XLA, without effect.
            kwargs: what `loop_fn` is called with beside.

        Returns:
            A list of what `loop_fn` returned.
        """
        (model,), (context,) = self.models, self._contexts
        if self._is_native:
            return [loop_fn(model, enumerate(loader), context.device, context, **kwargs)]
        xla_dynamo.wait_device_ops()
        batches = ParallelLoader(loader, self.devices, batchdim, **self._options)
        try:
            own = batches.per_device_loader(context.device)
            return [loop_fn(model, own, context.device, context, **kwargs)]
        finally:
            batches.close()


def _device_of(module: nn.Module) -> torch.device:
    devices = {p.device for p in module.parameters()}
    if len(devices) > 1:
        raise RuntimeError(f"the model is on several devices: {sorted(map(str, devices))}")
    return devices.pop() if devices else torch.device("cpu")
