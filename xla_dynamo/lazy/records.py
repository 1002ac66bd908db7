"""Record operators on 'xla' tensors without running them: a graph of values and their records.

There is no list of pending records. The values that a record makes keep it alive, and cells and the
records that read a value keep the value alive. So a record that nobody can read any more is freed.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.lazy import contents, manual_regions, random_state
from xla_dynamo.lazy.changing_numbers import changing_numbers_of, may_change
from xla_dynamo.lazy.contents import (
    Cell,
    Geometry,
    Value,
    View,
    bits_of,
    cell_of,
    geometry_of,
    new_tensor,
)
from xla_dynamo.lazy.indexing import INDEXING
from xla_dynamo.lazy.memory import value_of
from xla_dynamo.lazy.recipes import Recipe, recipe_of
from xla_dynamo.lazy.refusals import refuse_overlaps
from xla_dynamo.lazy.signatures import Signature
from xla_dynamo.lazy.user_lines import Place, place_of_caller
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_private import OpOverload

Tensor: TypeAlias = torch.Tensor
_MOST_ALLOWED = 4096


class _Count:
    def __init__(self) -> None:
        self.made = 0  # records


count = kept(_Count)


class Arg:
    """A tensor argument of a record.

    Attributes:
        value: the value of its cell, before the operator.
        geometry: the elements that it shows.
        view: how it is made of the value; None if nobody knows, or it is the value.
        bits: operators of views that negate or conjugate what is read.
        written: which of the written cells it lies in, or -1.
    """

    __slots__ = ("bits", "geometry", "value", "view", "written")

    def __init__(self, value: Value, geometry: Geometry, view: View | None) -> None:
        self.value, self.geometry, self.view, self.written = value, geometry, view, -1
        self.bits: Sequence[OpOverload] = ()


class Number:
    """A number among a record's arguments that may be another one next time.

    Attributes:
        index: its index in the record's `numbers`.
        dtype: float64, or int64 for a whole number.
    """

    __slots__ = ("dtype", "index")

    def __init__(self, index: int, dtype: torch.dtype) -> None:
        self.index, self.dtype = index, dtype


class Record:
    """One call of an operator.

    Its results are the new values of the cells that it writes, in their order, and its new tensors.

    Attributes:
        args, kwargs: the call's, with an `Arg` for a tensor and a `Number` for a changing number.
        inputs: the `Arg`s.
        numbers: the values of the `Number`s.
        overwritten: the values that the cells it writes had before.
        count: how many results it has.
        is_inside_region: whether they are shards inside of a manual region.
        drawn: where they are random, references to them.
        key: what they are drawn from; None if they are not random.
        order: records are made in this order.
        place: the user's line.
    """

    __slots__ = (
        "args", "count", "drawn", "inputs", "is_inside_region", "key", "kwargs", "numbers", "order",
        "overwritten", "place", "recipe",
    )  # fmt: skip

    def __init__(self, recipe: Recipe, call: "_Call", overwritten: list[Value]) -> None:
        self.recipe, self.args, self.kwargs = recipe, call.args, call.kwargs
        self.inputs, self.numbers, self.overwritten = call.inputs, call.numbers, overwritten
        count.made += 1
        self.order = count.made
        self.place: Place | None = place_of_caller()
        self.count = 0
        self.drawn: Sequence[weakref.ref[Value]] = ()
        self.key = random_state.next_key() if recipe.signature.draws else None
        read = (arg.value for arg in self.inputs)
        self.is_inside_region = manual_regions.is_inside(recipe.signature.name, read)

    def result(self, geometry: Geometry) -> Value:
        """One more result."""
        value = Value(geometry, None, self, self.count)
        self.count += 1
        if self.recipe.signature.draws:
            self.drawn = (*self.drawn, weakref.ref(value))
        return value


class _Call:
    """The arguments of a call, taken apart: what varies, and a key for all that does not."""

    __slots__ = ("args", "cells", "inputs", "key", "kwargs", "numbers")

    def __init__(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.inputs: list[Arg] = []
        self.cells: list[Cell | None] = []
        self.numbers: list[float] = []
        key: list[Any] = [signature.op, torch.get_default_dtype()]
        changing = changing_numbers_of(signature.op) or ()
        self.args = [
            self._take(signature, a, key, index in changing) for index, a in enumerate(args)
        ]
        self.kwargs: dict[str, Any] = {}
        for name, a in kwargs.items():
            key.append(name)
            self.kwargs[name] = self._take(signature, a, key, name in changing)
        self.key = tuple(key)

    def _take(self, signature: Signature, a: Any, key: list[Any], changes: bool) -> Any:
        if isinstance(a, torch.Tensor):
            return self._tensor(signature, a, key)
        kind = type(a)
        if kind is tuple or kind is list or isinstance(a, list | tuple):
            key.append(len(a))
            return [self._take(signature, x, key, changes) for x in a]
        if changes and (kind is float or kind is int) and may_change(a):
            key.append(kind)
            self.numbers.append(a)
            dtype = torch.float64 if kind is float else torch.int64
            return Number(len(self.numbers) - 1, dtype)
        key += (kind, a if a == a else repr(a))  # 1 is 1.0 and True; NaN is not NaN
        if kind is float and not a:
            key.append(str(a))  # 0.0 is -0.0
        return a

    def _tensor(self, signature: Signature, tensor: Tensor, key: list[Any]) -> Arg:
        geometry = geometry_of(tensor)
        if tensor.device.type == "xla":
            cell = cell_of(tensor)
            arg = Arg(cell.value, geometry, cell.views.get(geometry))
            self.cells.append(cell)
            key.append(geometry)
            if tensor.is_conj() or tensor.is_neg():
                arg.bits = bits_of(tensor)
                key.append(arg.bits)
        elif tensor.dim() and signature.op not in INDEXING:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"xla:0 and {tensor.device}!"
            )
        else:  # a number of the host, which may change there before it is read here
            arg = Arg(value_of(tensor.detach().clone()), geometry, None)
            self.cells.append(None)
            key += ("host", geometry)
        self.inputs.append(arg)
        return arg


def record(
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    by_value: Callable[..., Any],
) -> Any:
    """Note a call, and return what the operator returns: new tensors, or those that it writes.

    `by_value` is called instead where only the values of the arguments tell the sizes of results.

    Raises:
        RuntimeError, TypeError, ...: what torch says to wrong arguments.
    """
    with contents.lock:
        call = _Call(signature, args, kwargs)
        recipe = recipe_of(call.key, signature, args, kwargs)
        if recipe is not None and recipe.resizes:
            _resize(recipe, args, kwargs)
            return record(signature, args, kwargs, by_value)
        if recipe is not None:
            if signature.written and len(set(call.cells)) < len(call.cells):
                _refuse_overlaps(call, signature, args, kwargs)
            return _note(recipe, call, args, kwargs)
    return by_value(signature, args, kwargs)


_allowed: set[Any] = set()


def _refuse_overlaps(
    call: _Call, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise eager's error where memory that the call writes overlaps with what it reads."""
    key = (call.key, tuple(map(call.cells.index, call.cells)))
    if key not in _allowed:
        refuse_overlaps(signature, args, kwargs)
        if len(_allowed) >= _MOST_ALLOWED:
            _allowed.clear()
        _allowed.add(key)


def _note(recipe: Recipe, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    signature = recipe.signature
    metrics.count_operator(signature.counted)
    written = _written_cells(recipe, call, args, kwargs) if signature.written else []
    new = Record(recipe, call, [cell.value for cell in written])
    for cell in written:
        cell.value = new.result(cell.value.geometry)
    returned: list[Any] = []
    for result, name in zip(recipe.results, signature.results, strict=True):
        if name is not None:
            returned.append(signature.argument(name, args, kwargs))
        elif result is None:
            returned.append(None)
        elif isinstance(result, list):
            returned.append([new_tensor(new.result(g)) for g in result])
        else:
            returned.append(new_tensor(new.result(result)))
    if len(returned) == 1:
        return returned[0]
    return tuple(returned) if returned else None


def _written_cells(
    recipe: Recipe, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Cell]:
    """The cells that a call writes, each once; its arguments are told which is theirs."""
    cells: list[Cell] = []
    known = {id(arg): cell for arg, cell in zip(call.inputs, call.cells, strict=True)}
    for position, name in recipe.signature.written:
        taken = call.args[position] if position < len(call.args) else call.kwargs.get(name)
        for arg in taken if isinstance(taken, list) else [taken]:
            if arg is None:
                continue
            cell = known[id(arg)]
            if cell is None:
                raise RuntimeError(
                    f"{recipe.signature.name} cannot write into a tensor of the CPU what it "
                    "computes from tensors on xla:0: move the one to the other's device"
                )
            if cell not in cells:
                cells.append(cell)
            arg.written = cells.index(cell)
    return cells


def _resize(recipe: Recipe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Give `out=` tensors of other sizes those of the results, as eager does."""
    geometries = iter(recipe.written)
    for _, name in recipe.signature.written:
        taken = recipe.signature.argument(name, args, kwargs)
        for tensor in taken if isinstance(taken, list | tuple) else [taken]:
            if tensor is not None and tensor.size() != (size := next(geometries)[1]):
                tensor.resize_(size)
