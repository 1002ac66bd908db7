"""Operators that are not recorded as they are called: moves between devices, numbers, others."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from xla_dynamo import torch_private
from xla_dynamo.errors import UnsupportedTensor
from xla_dynamo.lazy import contents
from xla_dynamo.lazy.contents import (
    cell_of,
    new_tensor,
    refuse_dtype,
    refuse_other_forms,
    span,
)
from xla_dynamo.lazy.execution import tensors_behind
from xla_dynamo.lazy.memory import fallback_device, value_of
from xla_dynamo.lazy.records import record
from xla_dynamo.lazy.signatures import Signature
from xla_dynamo.lowerings.builders.strides import overlaps
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten
Tensor: TypeAlias = torch.Tensor
SPECIAL: dict[OpOverload, Callable[..., Any]] = {}


def _special(*ops: OpOverload) -> Callable[[Any], Any]:
    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        SPECIAL.update(dict.fromkeys(ops, function))
        return function

    return put


def to_device(tensor: Tensor) -> Tensor:
    """A tensor of the 'xla' device with these elements, which become its own: not copied.

    Raises:
        UnsupportedTensor, UnsupportedDtype: XLA has no form for it.
    """
    refuse_other_forms(tensor)
    return new_tensor(value_of(tensor))


def to_dlpack(tensor: Tensor) -> Any:
    """A DLPack capsule of a copy of an 'xla' tensor's elements, on the device that computes.

    A copy, since the memory of the device's tensors is written anew by later steps. torch's own
    `to_dlpack` would give a capsule without memory.

    Raises:
        UnsupportedTensor: the tensor is not on the device.
    """
    if tensor.device.type != "xla":
        raise UnsupportedTensor(
            f"xla_dynamo.to_dlpack takes tensors of the 'xla' device, not of {tensor.device}: use "
            "torch.utils.dlpack.to_dlpack"
        )
    with tensors_behind([tensor]) as (shown,):
        return torch_private.to_dlpack(shown.detach().clone())


def uploaded(tensor: Tensor, dtype: torch.dtype, memory_format: Any = None) -> Tensor:
    """A copy of a tensor of the host on the device that computes.

    Raises:
        UnsupportedTensor, UnsupportedDtype: XLA has no form for it.
    """
    refuse_dtype(dtype)
    refuse_other_forms(tensor)
    if tensor.device.type == "meta":
        raise NotImplementedError(
            "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() "
            "instead of torch.nn.Module.to() when moving module from meta to a different device."
        )
    device = fallback_device()
    form = torch.preserve_format if memory_format is None else memory_format
    with metrics.timed("TransferToDeviceTime"):
        made = torch.empty_like(tensor, dtype=dtype, device=device, memory_format=form)
        made.copy_(tensor)
    metrics.add_sample("OutboundData", made.nbytes, "bytes")
    return made


@contextlib.contextmanager
def _read(x: Tensor) -> Iterator[Tensor]:
    """The elements of a tensor of the device, for a block that moves them to the host."""
    with tensors_behind([x]) as (shown,), metrics.timed("TransferFromDeviceTime"):
        metrics.add_sample("InboundData", shown.nbytes, "bytes")
        yield shown


@_special(aten._to_copy.default)
def _to_copy(
    signature: Signature,
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    if x.device.type != "xla":
        return to_device(uploaded(x, dtype or x.dtype, memory_format))
    if device is None or device.type == "xla":
        kwargs = {"dtype": dtype, "memory_format": memory_format}
        return record(signature, (x,), kwargs, _never)
    with _read(x) as shown:
        return aten._to_copy.default(shown, dtype=dtype, device=device, memory_format=memory_format)


@_special(aten.is_pinned.default)
def _is_pinned(signature: Signature, x: Tensor, device: torch.device | None = None) -> bool:
    """No memory of the device is the host's; the elements need not be known."""
    return False


@_special(aten.record_stream.default)
def _record_stream(signature: Signature, x: Tensor, stream: Any) -> None:
    """There is one stream, which gives no memory back before it is done with it."""


def _never(*args: Any) -> Any:
    raise AssertionError("sizes of a copy do not depend on values")


@_special(aten.copy_.default)
def _copy(
    signature: Signature, target: Tensor, source: Tensor, non_blocking: bool = False
) -> Tensor:
    if target.device.type != "xla":
        with _read(source) as shown:
            return target.copy_(shown)
    if source.device.type != "xla":
        source = to_device(uploaded(source, source.dtype))
    return record(signature, (target, source), {}, _never)


@_special(aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)
def _fill(signature: Signature, x: Tensor, *value: Any) -> Tensor:
    """Elements that an expanded tensor shows more than once are written once."""
    size = [1 if s == 0 else n for n, s in zip(x.size(), x.stride(), strict=True)]
    target = x.as_strided(size, x.stride()) if size != list(x.size()) and 0 not in x.size() else x
    record(signature, (target, *value), {}, _never)
    return x


@_special(
    aten._foreach_addcdiv.Tensor,
    aten._foreach_addcdiv_.Tensor,
    aten._foreach_addcmul.Tensor,
    aten._foreach_addcmul_.Tensor,
)
def _foreach_with_numbers(signature: Signature, *args: Any) -> Any:
    """Factors in a vector of the host, where eager too reads them before it computes."""
    *lists, numbers = args
    if numbers.device.type == "xla":
        return record(signature, args, {}, _never)
    return signature.op.overloadpacket.ScalarList(*lists, numbers.tolist())


@_special(aten._embedding_bag_backward.default)
def _bag_gradient(signature: Signature, *args: Any) -> Tensor:
    """The gradient of a bag with `sparse=True` is dense here: see `sparse_gradients`."""
    position = signature.positions["sparse"]
    return record(signature, (*args[:position], False, *args[position + 1 :]), {}, _never)


@_special(aten.polygamma_.default)
def _polygamma(signature: Signature, x: Tensor, n: int) -> Tensor:
    """AOTAutograd has no functional form for the operator in place."""
    return x.copy_(torch.polygamma(n, x))


@_special(aten.native_batch_norm.default)
def _batch_norm(
    signature: Signature,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    *numbers: float,
) -> Any:
    """In training it writes the running statistics, which its schema does not say."""
    if training and mean is not None and variance is not None:
        op = aten._native_batch_norm_legit.default
        return op(x, weight, bias, mean, variance, training, *numbers)
    return record(signature, (x, weight, bias, mean, variance, training, *numbers), {}, _never)


@_special(aten.empty_strided.default, aten.new_empty_strided.default)
def _empty_strided(signature: Signature, *args: Any, **kwargs: Any) -> Tensor:
    """Where strides let elements share an offset, a view of memory in which each has its own."""
    like, (size, stride) = args[:-2], args[-2:]
    if not overlaps(size, stride) or 0 in size:
        return record(signature, args, kwargs, _never)
    base = record(signature, (*like, [span(size, stride)], [1]), kwargs, _never)
    view = contents.restrided(base, size, stride, 0)
    cell_of(base).note_view(
        contents.geometry_of(view),
        contents.View(aten.as_strided.default, (list(size), list(stride)), {}, None, None),
    )
    return view


@_special(aten._local_scalar_dense.default)
def _item(signature: Signature, x: Tensor) -> Any:
    metrics.increment(signature.name)  # as PyTorch/XLA does, to show who asks for values
    with _read(x) as shown:
        return shown.item()


@_special(aten.resize_.default)
def _resize(signature: Signature, x: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    """Elements keep their offsets in memory; more memory comes behind."""
    if memory_format is None and list(size) == list(x.size()):
        return x  # whatever its strides are
    form = torch.contiguous_format if memory_format is None else memory_format
    stride = torch.empty(size, device="meta", memory_format=form).stride()
    needed = x.storage_offset() + span(size, stride)
    with contents.lock:
        cell = cell_of(x)
        dtype, old, old_stride, _ = cell.value.geometry
        there = span(old, old_stride)
        if needed > there:
            base = contents.restrided(x, (there,), (1,), 0)
            more = torch.empty(needed - there, dtype=dtype, device=x.device)
            cell.value = cell_of(torch.cat([base, more])).value
            cell.views.clear()
        contents.set_geometry(x, size, stride, x.storage_offset())
    return x
