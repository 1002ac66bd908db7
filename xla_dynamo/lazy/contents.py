"""The contents of tensors of the 'xla' device: a cell for each storage, with its present value.

A tensor of the device is a plain `torch.Tensor` without memory. All tensors that share a storage,
a base and its views, share a cell; a write into any of them gives the cell another value. A value
never changes. It is the result of one operator: pending until somebody reads it, then a PJRT buffer
(`memory`).
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from xla_dynamo.errors import UnsupportedDtype, UnsupportedTensor
from xla_dynamo.lowerings.builders.dtypes import SUPPORTED_DTYPES
from xla_dynamo.runtime import marks, metrics
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.weak_table import WeakTable
from xla_dynamo.torch_private import (
    DispatchKey,
    DispatchKeySet,
    OpOverload,
    create_empty_tensor,
    number_of_storage,
    storage_id,
)

if TYPE_CHECKING:
    from xla_dynamo.lazy.records import Record

aten = torch.ops.aten
Tensor: TypeAlias = torch.Tensor
# dtype, size, stride, storage offset: which elements of a cell a tensor shows.
Geometry: TypeAlias = tuple[torch.dtype, torch.Size, tuple[int, ...], int]

_META = DispatchKeySet(DispatchKey.Meta)
_set = aten.set_.source_Storage_storage_offset
_MOST_VIEWS = 1024

# Held while values and cells are exchanged, so never for long: not while a program runs.
lock = threading.RLock()


class Value:
    """The elements of a storage, as a tensor that is dense or made by one operator.

    Attributes:
        geometry: dtype, size, stride, and offset (0).
        buffer: the elements, once they are computed, in the layout of the geometry.
        record, index: what makes them and which of its results they are, until then.
    """

    __slots__ = ("__weakref__", "buffer", "geometry", "index", "record")

    def __init__(
        self,
        geometry: Geometry,
        buffer: Buffer | None = None,
        record: "Record | None" = None,
        index: int = 0,
    ) -> None:
        self.geometry, self.buffer, self.record, self.index = geometry, buffer, record, index


class View:
    """How a view was made: the operator and its arguments, of which the first is the parent.

    Attributes:
        index: which of the operator's results it is, if it has several.
        parent: the view that it is a view of; None for the base.
    """

    __slots__ = ("args", "index", "kwargs", "op", "parent")

    def __init__(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        index: int | None,
        parent: "View | None",
    ) -> None:
        self.op, self.args, self.kwargs, self.index, self.parent = op, args, kwargs, index, parent


class Cell:
    """The present value of a storage, and how the views that were taken of it were made.

    Attributes:
        value: the present value.
        views: how views of these elements are made.
        is_bytes: the value is the bytes of elements whose dtype no tensor has told yet.
    """

    __slots__ = ("is_bytes", "value", "views")

    def __init__(self, value: Value, is_bytes: bool = False) -> None:
        self.value, self.is_bytes = value, is_bytes
        self.views: dict[Geometry, View] = {}

    def note_view(self, geometry: Geometry, view: View) -> None:
        """Remember how a view is made; views of the same elements are the same."""
        if geometry == self.value.geometry:
            return
        known = self.views.get(geometry)
        # Torch makes most views by as_strided; the operator that called it comes after it.
        if known is None or known.op is aten.as_strided.default:
            if len(self.views) >= _MOST_VIEWS:  # those forgotten are read by their offsets
                self.views.clear()
            self.views[geometry] = view


# By the address of torch's storage. No test replaces the table: tensors outlive a test.
_table: WeakTable[int, Cell] = WeakTable()
_cells = _table.values
# Of storages: PyTorch/XLA, which has views only inside of programs, counts tensors.
metrics.count_by("CreateXlaTensor", lambda: _table.made)
metrics.count_by("DestroyXlaTensor", lambda: _table.made - len(_cells))


def cell_of(tensor: Tensor) -> Cell:
    """The cell behind a tensor of the device."""
    cell = _cells.get(storage_id(tensor))
    if cell is None:
        raise NotImplementedError(
            f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} has no contents: no "
            "operator made it; make it on the CPU and move it with .to('xla')"
        )
    if cell.value.record is None and cell.value.buffer is None:
        _refill(cell)
    return cell


def let_go(storage: int) -> None:
    """Free the elements of a storage, given its number; its next reader finds zeros."""
    with lock:
        cell = _cells.get(storage)
        if cell is not None:
            cell.value = Value(cell.value.geometry)
            cell.views.clear()


def _refill(cell: Cell) -> None:
    """Give a cell whose elements were freed others, which are computed if anybody reads them."""
    dtype, size, stride, _ = cell.value.geometry
    with torch.no_grad():
        zeros = torch.empty_strided(size, stride, dtype=dtype, device="xla").zero_()
    cell.value = _cells[storage_id(zeros)].value


def bytes_behind(tensor: Tensor) -> Cell | None:
    """The cell behind a tensor if it has bytes that are to be elements of the tensor's dtype."""
    cell = _cells.get(storage_id(tensor))
    return cell if cell is not None and cell.is_bytes else None


def live_cells() -> list[Cell]:
    """The cells of all storages that live."""
    return list(_cells.copy().values())  # at once: garbage may be collected


def marked_shardings() -> dict[int, Sharding]:
    """The shardings that the contents of storages are marked with, by the id of the value."""
    found = {}
    for storage, cell in _cells.copy().items():  # at once: garbage may be collected
        dtype, *elements = cell.value.geometry
        sharding = marks.asked_of(storage, (*elements, dtype))
        if sharding is not None:
            found[id(cell.value)] = sharding
    return found


def geometry_of(tensor: Tensor) -> Geometry:
    """Which elements of its cell a tensor shows."""
    return (tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())


def shows_all(tensor: Tensor) -> bool:
    """Whether a tensor shows its cell's value as it is, and not a view of it."""
    return geometry_of(tensor) == cell_of(tensor).value.geometry and not bits_of(tensor)


def shows_twice(tensor: Tensor) -> bool:
    """Whether a tensor shows elements more than once, as an expanded one does."""
    return any(n > 1 and s == 0 for n, s in zip(tensor.size(), tensor.stride(), strict=True))


def bits_of(tensor: Tensor) -> tuple[OpOverload, ...]:
    """The views, of the same elements, that a tensor's conjugate and negative bits stand for."""
    conjugate = (aten._conj.default,) if tensor.is_conj() else ()
    return (*conjugate, aten._neg_view.default) if tensor.is_neg() else conjugate


def new_tensor(value: Value) -> Tensor:
    """A tensor of the device with this value, and a storage of its own."""
    dtype, size, stride, _ = value.geometry
    tensor = create_empty_tensor((0,), dtype)
    storage = tensor.untyped_storage()  # autograd keeps tensors of its own over it
    _table.put(storage_id(tensor), storage, Cell(value))
    # So that the storage has as many bytes as its elements would take.
    try:
        return _set.redispatch(_META, tensor, storage, 0, size, stride)
    except RuntimeError:  # there are gaps between them
        length = span(size, stride)
        _set.redispatch(_META, tensor, storage, 0, (length,), (1,))
        return _set.redispatch(_META, tensor, storage, 0, size, stride)


def refuse_other_forms(tensor: Tensor) -> None:
    """Raise UnsupportedTensor or UnsupportedDtype for what XLA has no form for."""
    refuse_dtype(tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedTensor(
            f"the 'xla' device has no tensors of layout {tensor.layout} and dtype {tensor.dtype}: "
            "call .cpu() before the operator that makes one, or .to_dense()"
        )


def refuse_dtype(dtype: torch.dtype) -> None:
    """Raise UnsupportedDtype for a dtype that XLA lacks."""
    if dtype not in SUPPORTED_DTYPES:
        raise UnsupportedDtype(
            f"the 'xla' device has no tensors of {dtype}: cast or .dequantize() them first, or "
            "call .cpu() before the operator that makes one"
        )


class LoadedStorage(torch.UntypedStorage):
    """A storage that `torch.load` gives to all tensors that shared one: it asks for an address."""

    def data_ptr(self) -> int:
        """No address, since there is no memory, but a number that no other storage has."""
        return number_of_storage(self)


def new_storage(value: Value) -> torch.UntypedStorage:
    """A storage of these bytes, of no size until a tensor shows elements of it."""
    tensor = create_empty_tensor((0,), value.geometry[0])
    storage = tensor.untyped_storage()
    storage.__class__ = LoadedStorage
    _table.put(storage_id(tensor), storage, Cell(value, is_bytes=True))
    return storage


def restrided(tensor: Tensor, size: Any, stride: Any, offset: int) -> Tensor:
    """Another tensor over the same storage."""
    return aten.as_strided.default.redispatch(_META, tensor, size, stride, offset)


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """The elements of memory from the first to the last that a tensor shows."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def as_dtype(memory: Tensor, dtype: torch.dtype) -> Tensor:
    """The memory that a tensor spans, from its first element, as elements of another dtype."""
    return memory.as_strided((span(memory.size(), memory.stride()),), (1,)).view(dtype)


def set_geometry(tensor: Tensor, size: Any, stride: Any, offset: int) -> None:
    """Change what a tensor shows of its storage, which becomes larger if need be."""
    _set.redispatch(_META, tensor, tensor.untyped_storage(), offset, size, stride)


def as_meta(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let torch's kernel for tensors without memory run: it makes views, and changes sizes."""
    return op.redispatch(_META, *args, **kwargs)
