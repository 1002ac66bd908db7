"""Masks over the positions of dynamic dimensions that have elements of the graph."""

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.dimensions import Atom, Dim, dim_sizes, is_free
from xla_dynamo.lowerings.bounded.extents import Extent, RunTimeSizes, Symbols
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type


class Masks:
    """Selects that put a neutral number where a value has no elements of the graph."""

    def __init__(self, symbols: Symbols, run_time: RunTimeSizes) -> None:
        self._symbols, self._run_time = symbols, run_time

    def masked(self, x: ir.Value, dims: dict[int, Dim], neutral: ir.Value) -> ir.Value:
        """A value with a scalar of its type in place of what is arbitrary in some dimensions."""
        shape, mask = build.shape_of(x), None
        for number, dim in dims.items():
            if is_free(dim):
                one = build.broadcast_in_dim(self._of_dim(dim), shape, [number])
                mask = one if mask is None else hlo.and_(mask, one)
        if mask is None:
            return x
        return hlo.select(mask, x, build.broadcast_in_dim(neutral, shape, []))

    def extent(self, atom: Atom) -> Extent:
        """How many positions of a dynamic atom count."""
        return self._symbols.wanted(atom.sizes) if atom.extent is None else atom.extent

    def _of_dim(self, dim: Dim) -> ir.Value:
        """Which positions of a dimension have elements of the graph, i1[size]."""
        shape, mask = [atom.sizes[0] for atom in dim], None
        for number, atom in enumerate(dim):
            if atom.is_dynamic:
                bound = hlo.convert(
                    tensor_type((), torch.int32), self._run_time.value(self.extent(atom))
                )
                position = build.iota([atom.sizes[0]], 0, torch.int32)
                inside = build.compare(
                    position, build.broadcast_in_dim(bound, [atom.sizes[0]], []), "LT"
                )
                inside = build.broadcast_in_dim(inside, shape, [number])
                mask = inside if mask is None else hlo.and_(mask, inside)
        assert mask is not None
        return build.reshape(mask, [dim_sizes(dim)[0]])
