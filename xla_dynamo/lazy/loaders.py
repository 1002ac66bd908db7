"""Loaders that upload batches in the background, while programs run: PyTorch/XLA's names."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.lazy import steps
from xla_dynamo.lazy.sharding import uploaded_in_shards
from xla_dynamo.spmd.marking import expect_marks
from xla_dynamo.spmd.sharding_spec import ShardingSpec
from xla_dynamo.torch_private import pytree

_END = object()
InputSharding: TypeAlias = ShardingSpec | Mapping[str, ShardingSpec | None]


class MpDeviceLoader:
    """A loader whose batches are on the device, and whose iterations are steps.

    Another thread takes batches from the loader and uploads their tensors. Before each batch but
    the first, what was recorded for the last one runs, as at `sync()`.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any = "xla",
        *,
        device_prefetch_size: int = 8,
        batches_per_execution: int = 1,
        input_sharding: InputSharding | None = None,
    ) -> None:
        """Take the loader.

        Args:
            loader: gives batches: tensors, or tuples, lists and dictionaries of them.
            device: where to upload them.
            device_prefetch_size: how many batches may wait on the device.
            batches_per_execution: how many batches make a step.
            input_sharding: how the tensors of a batch are sharded over a mesh: a spec for all whose
                rank it has, or, for batches that are dictionaries, a spec or None for each key.
                Tensors of other ranks or of sizes that do not shard evenly are whole on each
                device.

        Raises:
            ValueError: one of the sizes is less than one.
            ShardingError: `input_sharding` is no spec.
            ShardingError, from the iteration: a batch has other keys than `input_sharding`.
        """
        if min(device_prefetch_size, batches_per_execution) < 1:
            raise ValueError("device_prefetch_size and batches_per_execution must be at least 1")
        self._loader, self._device = loader, torch.device(device)
        self._ahead, self._batches = device_prefetch_size, batches_per_execution
        self._sharding = input_sharding
        _check_sharding(input_sharding)
        if input_sharding is not None:
            expect_marks()  # here, since batches are marked in another thread

    def __len__(self) -> int:
        """The number of batches.

        Raises:
            TypeError: the loader does not tell.
        """
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        upload = _Upload(self._loader, self._device, self._ahead, self._sharding)
        try:
            for number, batch in enumerate(upload):
                if number and number % self._batches == 0:
                    steps.end_for_loader()
                yield batch
            steps.end_for_loader()
        finally:
            upload.stop()


def _check_sharding(sharding: Any) -> None:
    specs = list(sharding.values()) if isinstance(sharding, Mapping) else [sharding]
    for spec in specs:
        if spec is not None and not isinstance(spec, ShardingSpec):
            raise ShardingError(
                f"input_sharding is a spmd.ShardingSpec, or a dictionary of them, and not {spec!r}"
            )


def _uploader(device: torch.device, sharding: InputSharding | None) -> Callable[[Any], Any]:
    """The function that brings a batch to the device."""

    def upload(batch: Any, spec: ShardingSpec | None) -> Any:
        def one(t: torch.Tensor) -> torch.Tensor:
            if spec is None or spec.mesh.size() == 1:
                return t.to(device)
            if spec.minibatch and device.type == "xla" and t.dim() == len(spec.partition_spec) > 0:
                return uploaded_in_shards(t, spec.sharding(), is_part=True)
            if not spec.can_apply(t):
                return t.to(device)
            if device.type == "xla" and t.device.type != "xla" and not t.requires_grad:
                return uploaded_in_shards(t, spec.sharding())
            return spec.apply(t.to(device))

        return pytree.tree_map_only(torch.Tensor, one, batch)

    if not isinstance(sharding, Mapping):
        return lambda batch: upload(batch, sharding)

    def upload_by_key(batch: Any) -> Any:
        if not isinstance(batch, Mapping) or batch.keys() != sharding.keys():
            had = sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            raise ShardingError(
                f"input_sharding has the keys {sorted(sharding)}, and a batch is {had}: give a "
                "spec, or None, for each key of the batches, or one spec for all tensors"
            )
        return {key: upload(value, sharding[key]) for key, value in batch.items()}

    return upload_by_key


class ParallelLoader:
    """A loader for several devices, of which there is one: see `MpDeviceLoader`."""

    def __init__(self, loader: Iterable[Any], devices: Sequence[Any], **options: Any) -> None:
        """Take the loader, the devices, and the options of `MpDeviceLoader`.

        Raises:
            ValueError: there are several devices.
        """
        if len(devices) != 1:
            raise ValueError(f"there is one device, 'xla:0', and not {len(devices)}: {devices!r}")
        self._inner = MpDeviceLoader(loader, devices[0], **options)

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """The loader of a device."""
        return self._inner


class _Upload:
    """A thread that uploads, and the queue of what it has uploaded."""

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device,
        ahead: int,
        sharding: InputSharding | None,
    ) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(ahead)
        self._stopped = threading.Event()
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        arguments = (loader, _uploader(device, sharding), grad, inference)
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def _run(
        self, loader: Iterable[Any], upload: Callable[[Any], Any], grad: bool, inference: bool
    ) -> None:
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                for batch in loader:
                    self._put(upload(batch))
                    if self._stopped.is_set():
                        return
            self._put(_END)
        except BaseException as error:  # told where the batch is asked for
            self._put(error)

    def _put(self, item: Any) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[Any]:
        while (item := self._queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item

    def stop(self) -> None:
        """Let the thread end, when the loader has given its next batch: nobody asks for more.

        Nobody waits for it: this may run while an operator is recorded, when garbage is collected.
        """
        self._stopped.set()
