"""Names of `torch_xla.distributed.parallel_loader`, with all the arguments that scripts give."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

import xla_dynamo


class MpDeviceLoader(xla_dynamo.MpDeviceLoader):
    """`xla_dynamo.MpDeviceLoader`, which uploads in one thread.

    Args:
        loader: gives batches: tensors, or tuples, lists and dictionaries of them.
        device: where to upload them.
        batchdim: as in PyTorch/XLA, without effect: each batch is for the one device.
        loader_prefetch_size: without effect: the thread that reads a batch uploads it, and
            `device_prefetch_size` of them wait. The loader's own workers read ahead.
        host_to_device_transfer_threads: without effect: there is one, which keeps their order.
        options: as there: `batches_per_execution`, `device_prefetch_size`, `input_sharding`.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any,
        *,
        batchdim: int = 0,
        loader_prefetch_size: int = 16,
        host_to_device_transfer_threads: int = 1,
        **options: Any,
    ) -> None:
        """Take the loader, the device, and the options."""
        super().__init__(loader, device, **options)


class ParallelLoader:
    """A loader whose batches another thread uploads, one after the other, until it is closed."""

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Sequence[Any],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ) -> None:
        """Take the loader, and the arguments of `MpDeviceLoader`.

        Raises:
            ValueError: there are several devices; or as `xla_dynamo.MpDeviceLoader`.
        """
        if len(devices) != 1:
            raise ValueError(f"there is one device, 'xla:0', and not {len(devices)}: {devices!r}")
        self._loader, self._batches_per_execution = cpu_loader, batches_per_execution
        inner = MpDeviceLoader(
            cpu_loader,
            devices[0],
            batches_per_execution=batches_per_execution,
            device_prefetch_size=device_prefetch_size,
            input_sharding=input_sharding,
        )
        self._batches = inner.__iter__()

    @property
    def batches_per_execution(self) -> int:
        """How many batches make a step."""
        return self._batches_per_execution

    def per_device_loader(self, device: Any) -> "PerDeviceLoader":
        """The iterator of the device's batches."""
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """The number of batches.

        Raises:
            TypeError: the loader does not tell.
        """
        return len(self._loader)  # type: ignore[arg-type]

    def next_item(self, device: Any) -> Any:
        """The next batch, on the device; None when there are no more."""
        return next(self._batches, None)

    def close(self) -> None:
        """Read and upload no more."""
        self._batches.close()  # type: ignore[attr-defined]


class PerDeviceLoader:
    """An iterator of a device's batches, whose iterations are steps."""

    def __init__(self, loader: ParallelLoader, device: Any) -> None:
        """Take the loader of all devices, and the device."""
        self._loader, self._device = loader, device

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        """The number of batches."""
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        """The next batch; before it, what was recorded for the last one runs."""
        item = self._loader.next_item(self._device)
        if item is None:
            raise StopIteration
        return item

    next = __next__
