"""Trace a slice of records into an FX graph, which is compiled like every other graph.

Values never change there either: where a record writes, its node works on a clone of the cell's
value, and AOTAutograd makes that functional.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.decompositions import fused_cells
from xla_dynamo.graphs.keyword_names import without_keywords
from xla_dynamo.lazy.changing_numbers import form_of
from xla_dynamo.lazy.contents import Geometry, Value, View, as_dtype
from xla_dynamo.lazy.draws import KEY_BYTES, keyed
from xla_dynamo.lazy.records import Arg, Number, Record
from xla_dynamo.lazy.slices import Slice
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.spmd.operators import MARK
from xla_dynamo.torch_private import FakeTensorMode, schema

aten = torch.ops.aten
as_strided = aten.as_strided.default
Node: TypeAlias = torch.fx.Node
# Operators that graphs have as functions of torch instead; higher rooms write into it.
WRITTEN_AS: dict[Any, Callable[..., Any]] = {}


def trace(cut: Slice, device: torch.device) -> torch.fx.GraphModule:
    """The graph of a slice.

    Its inputs are the slice's, and behind them a vector of float64 with the changing numbers, if
    there are any, and the keys of what draws, a row each. Its results are the outputs that replace
    no input; the others it writes there.

    Args:
        cut: the slice.
        device: the one that computes.
    """
    return _Trace(cut, device).graph_module()


def examples(cut: Slice, device: torch.device) -> list[torch.Tensor]:
    """Tensors like a slice's inputs, its numbers and keys, without elements."""
    geometries = [v.geometry for v in cut.inputs]
    if cut.numbers:
        geometries.append((torch.float64, torch.Size([len(cut.numbers)]), (1,), 0))
    if cut.keys:
        size = torch.Size([len(cut.keys), KEY_BYTES])
        geometries.append((torch.uint8, size, (KEY_BYTES, 1), 0))
    with FakeTensorMode():
        return [
            torch.empty_strided(size, stride, dtype=dtype, device=device)
            for dtype, size, stride, _ in geometries
        ]


class _Trace:
    def __init__(self, cut: Slice, device: torch.device) -> None:
        self._cut, self._device, self._graph = cut, device, torch.fx.Graph()
        self._inputs = {id(v): self._graph.placeholder(f"x{i}") for i, v in enumerate(cut.inputs)}
        self._numbers = self._graph.placeholder("numbers") if cut.numbers else None
        self._keys = self._graph.placeholder("keys") if cut.keys else None
        self._first_number = self._key = 0
        self._stack_trace: str | None = None
        self._results: dict[int, Node] = {}
        self._views: dict[tuple[Node, Geometry], Node] = {}
        # What the present record writes through bits: the elements, a copy, and the bits.
        self._behind_bits: list[tuple[Node, Node, Sequence[Any]]] = []
        # What it writes as elements of another dtype: the base, the offsets, and a copy.
        self._behind_dtypes: list[tuple[Node, Geometry, Node]] = []

    def graph_module(self) -> torch.fx.GraphModule:
        for record in self._cut.records:
            self._stack_trace = record.place.stack_trace() if record.place else None
            self._record(record)
        outputs = []
        for value, replaced, asked in zip(
            self._cut.outputs, self._cut.replaced, self._asked(), strict=True
        ):
            if asked is not None:
                self._results[self._number_of(value)] = self._marked(value, asked)
            if replaced < 0:
                # A copy is no view of anything, so AOTAutograd has nothing to do with it; to XLA it
                # is nothing at all.
                outputs.append(self._call(_copied, self._base(value), value.geometry))
            else:
                old = self._inputs[id(self._cut.inputs[replaced])]
                self._call(aten.copy_.default, old, self._base(value))
        self._graph.output(tuple(outputs))
        return torch.fx.GraphModule(torch.nn.Module(), self._graph)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self._graph.call_function(target, args, kwargs)
        if self._stack_trace:
            node.meta["stack_trace"] = self._stack_trace
        return node

    def _base(self, value: Value) -> Node:
        if value.record is None:
            return self._inputs[id(value)]
        return self._results[self._number_of(value)]

    def _number_of(self, value: Value) -> int:
        assert value.record is not None
        return self._cut.firsts[value.record.order] + value.index

    def _asked(self) -> Sequence[Sharding | None]:
        """The shardings that the outputs are asked to have."""
        division = self._cut.division
        return [None] * len(self._cut.outputs) if division is None else division.asked

    def _marked(self, value: Value, asked: Sharding) -> Node:
        """The node of a result, marked with a sharding."""
        mesh, names = asked.mesh, [",".join(axes) for axes in asked.axes]
        return self._call(
            MARK,
            self._base(value),
            list(mesh.ids),
            list(mesh.mesh_shape),
            list(mesh.axis_names),
            names,
        )

    def _record(self, record: Record) -> None:
        first = self._cut.firsts[record.order]
        for index, value in enumerate(record.overwritten):
            self._results[first + index] = self._call(_copied, self._base(value), value.geometry)
        args = [self._argument(record, a) for a in record.args]
        kwargs = {k: self._argument(record, a) for k, a in record.kwargs.items()}
        recipe = record.recipe
        # Torch's fake kernels of the fused cells fail without biases.
        whole = recipe.signature.op
        written_as = fused_cells.DECOMPOSITIONS.get(whole) or WRITTEN_AS.get(whole)
        op = written_as or without_keywords(whole)
        if record.numbers:
            op, kwargs = form_of(whole), {**kwargs, "out": _dtypes(record)}
        if recipe.default_dtype != torch.get_default_dtype():
            op = _under(recipe.default_dtype, op)
        if record.key is not None:
            args.insert(0, self._call(aten.select.int, self._keys, 0, self._key))
            op, self._key = keyed(op), self._key + 1
        call = self._call(op, *args, **kwargs)
        self._first_number += len(record.numbers)
        for shown, copy, bits in self._behind_bits:
            self._call(aten.copy_.default, shown, self._call(_read_through, copy, bits[::-1]))
        self._behind_bits.clear()
        for base, geometry, copy in self._behind_dtypes:
            self._call(_put_by_offset, base, geometry, copy)
            self._views = {key: v for key, v in self._views.items() if key[0] is not base}
        self._behind_dtypes.clear()
        number = first + len(record.overwritten)
        for index, result in enumerate(recipe.results):
            if result is None:
                continue
            one = self._call(operator.getitem, call, index) if len(recipe.results) > 1 else call
            if isinstance(result, list):
                for element in range(len(result)):
                    self._results[number] = self._call(operator.getitem, one, element)
                    number += 1
            else:
                self._results[number] = one
                number += 1

    def _argument(self, record: Record, a: Any) -> Any:
        if isinstance(a, Arg):
            base = self._base(a.value)
            if a.written >= 0:
                base = self._results[self._cut.firsts[record.order] + a.written]
            shown = self._view(base, a.value, a.geometry, a.view)
            if a.bits and a.written >= 0:
                copy = self._call(_read_through, shown, a.bits)
                self._behind_bits.append((shown, copy, a.bits))
                return copy
            if a.written >= 0 and a.geometry[0] != a.value.geometry[0] and not _replays(a.view):
                copy = self._call(aten.clone.default, shown)
                self._behind_dtypes.append((base, a.geometry, copy))
                return copy
            for op in a.bits:
                shown = self._call(op, shown)
            return shown
        if isinstance(a, Number):
            assert self._numbers is not None
            index = self._first_number + a.index
            number = self._call(aten.select.int, self._numbers, 0, index)
            return self._call(aten.to.dtype, number, a.dtype)
        if isinstance(a, list):
            return [self._argument(record, x) for x in a]
        return self._device if isinstance(a, torch.device) else a

    def _view(self, base: Node, value: Value, geometry: Geometry, view: View | None) -> Node:
        if geometry == value.geometry:
            return base
        known = self._views.get((base, geometry))
        if known is None:
            laid_out = self._call(_laid_out, base, value.geometry)
            if _replays(view):
                known = self._replay(laid_out, _chain(view))
            else:
                known = self._call(_by_offset, laid_out, geometry)
            self._views[base, geometry] = known
        return known

    def _replay(self, base: Node, chain: list[View]) -> Node:
        """The view of a node that its operators make."""
        node = base
        for step in chain:
            node = self._call(step.op, node, *step.args, **step.kwargs)
            if step.index is not None:
                node = self._call(operator.getitem, node, step.index)
        return node


def _chain(view: View | None) -> list[View]:
    """The views from the first of the base to this one; none if nobody knows."""
    chain: list[View] = []
    while view is not None:
        chain.insert(0, view)
        view = view.parent
    return chain


def _replays(view: View | None) -> bool:
    """Whether a view is made by its operators, and not by its offsets.

    AOTAutograd refuses writes through as_strided of a view and views of it.
    """
    chain = _chain(view)
    return bool(chain) and (len(chain) == 1 or all(v.op is not as_strided for v in chain))


# These are called while AOTAutograd traces, where the strides that values really have are known.


def _under(default_dtype: torch.dtype, op: Any) -> Any:
    """An operator under the default dtype that it was recorded under."""

    def call(*args: Any, **kwargs: Any) -> Any:
        now = torch.get_default_dtype()
        torch.set_default_dtype(default_dtype)
        try:
            return op(*args, **kwargs)
        finally:
            torch.set_default_dtype(now)

    return call


def _read_through(shown: torch.Tensor, bits: Sequence[Any]) -> torch.Tensor:
    """A copy of elements under bits. A write through the bits would leave them on the base."""
    for op in bits:
        shown = op(shown)
    return shown.clone().resolve_conj().resolve_neg()


def _copied(base: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """A copy to write into, with the strides that views of it were recorded for."""
    _, size, stride, _ = geometry
    copy = base.clone()
    return copy if copy.stride() == stride else base.new_empty_strided(size, stride).copy_(base)


def _laid_out(base: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """A value with the strides that views of it were recorded for: a rule may give others."""
    _, size, stride, _ = geometry
    return base if base.stride() == stride else base.new_empty_strided(size, stride).copy_(base)


def _by_offset(base: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """The elements at given offsets in a value's memory."""
    dtype, size, stride, offset = geometry
    base = base if base.dtype == dtype else as_dtype(base, dtype)
    return base.as_strided(size, stride, offset)


def _put_by_offset(base: torch.Tensor, geometry: Geometry, elements: torch.Tensor) -> None:
    """Write elements at given offsets in a value's memory, as elements of another dtype."""
    dtype, size, stride, offset = geometry
    new = as_dtype(base, dtype).as_strided_scatter(elements, size, stride, offset)
    base.copy_(new.view(base.dtype).as_strided(base.size(), base.stride(), 0))


def _dtypes(record: Record) -> Any:
    """The dtype of the result, or the dtypes of a list."""
    recipe = record.recipe
    written = [geometry[0] for geometry in recipe.written]
    new = recipe.results[0] if recipe.results else None
    if isinstance(new, list):
        return [geometry[0] for geometry in new]
    if new is not None:
        return new[0]
    return written if schema(recipe.signature.op).name.startswith("aten::_foreach") else written[0]
