"""The named dimensions of an exported program: names, ranges, and the sizes that prove it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.graphs.dynamic_sizes import DynamicSizes, NotBounded
from xla_dynamo.graphs.request import Request
from xla_dynamo.lowerings.bounded.extents import Extent
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower_dynamic import lower_dynamic
from xla_dynamo.programs.program import Program
from xla_dynamo.stablehlo.signature import Dimension, Size

Node: TypeAlias = torch.fx.Node
# Sizes that a graph is lowered at, besides the least. Few products and sums of them are equal, and
# among them are a power of two, odd ones, and one beyond the thresholds by which rules choose.
_SAMPLES = (37, 11, 64, 1031, 5, 7, 3, 13, 17, 2, 19, 4, 6, 8)
_VARIANTS = 5


class DynamicDimensions:
    """The symbols of a graph as named dimensions.

    Attributes:
        dimensions: the name and range of each symbol.
    """

    def __init__(self, gm: torch.fx.GraphModule, ranges: Mapping[Any, Any]) -> None:
        """Take a graph, and torch's ranges of its symbols.

        Raises:
            UnsupportedError: a size is no polynomial of the dimensions.
        """
        self._gm = gm
        try:
            self._sizes = DynamicSizes(gm)
        except NotBounded as refusal:
            raise _unsupported(refusal) from refusal
        self.dimensions = tuple(
            _dimension(name, symbol, ranges)
            for name, symbol in zip(_names(gm, self._sizes), self._sizes.symbols(), strict=True)
        )

    def lower(self, target: Target, request: Request, custom_ops: Collection[str]) -> Program:
        """The program for all sizes of the dimensions.

        Raises:
            UnsupportedError: it is not known at all sizes; the message names the operation and the
                line.
        """
        lows = [d.low for d in self.dimensions]
        try:
            return self._lowered(lows, target, request, custom_ops)
        except NotBounded as refusal:
            if min(lows) >= 2:
                raise _unsupported(refusal) from refusal
        # At a size of 1 rules leave out what would change nothing, as a broadcast.
        try:
            return self._lowered([max(low, 2) for low in lows], target, request, custom_ops)
        except NotBounded as refusal:
            raise _unsupported(refusal) from refusal

    def _lowered(
        self, least: Sequence[int], target: Target, request: Request, custom_ops: Collection[str]
    ) -> Program:
        ends = [(d.low, d.high) for d in self.dimensions]
        at = _variants(self.dimensions, least)
        return lower_dynamic(self._gm, self._sizes, at, ends, target, request, custom_ops)

    def size(self, node: Node, size: Any) -> Size:
        """A size of a node's fake value."""
        extent: Extent = self._sizes.extent(node, size)
        names = [d.name for d in self.dimensions]
        return Size(tuple((tuple(names[i] for i in key), n) for key, n in extent.terms))


def _names(gm: torch.fx.GraphModule, sizes: DynamicSizes) -> list[str]:
    """The names given to `torch.export.Dim`, else those of the sizes in the model's call."""
    given: dict[str, str] = {}
    sources: dict[Any, Any] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("val")
        for size in fake.shape if isinstance(fake, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                environment = size.node.shape_env
                given |= getattr(environment, "source_name_to_debug_name", {})
                sources |= getattr(environment, "var_to_sources", {})
    found: list[str] = []
    for symbol, source in zip(sizes.symbols(), sizes.calls.names, strict=True):
        known = [s.name for s in sources.get(symbol, ()) if isinstance(s.name, str)]
        name = next((given[n] for n in known if n in given), source)
        while name in found:
            name += "_"
        found.append(name)
    return found


def _dimension(name: str, symbol: Any, ranges: Mapping[Any, Any]) -> Dimension:
    known = ranges.get(symbol)
    if known is None:
        return Dimension(name, 2, None)
    high = int(known.upper) if known.upper.is_Integer else None
    return Dimension(name, max(int(known.lower), 1), high)


def _variants(dimensions: Sequence[Dimension], least: Sequence[int]) -> list[tuple[int, ...]]:
    """The values of the symbols at which a graph is lowered: others for each symbol."""
    columns = []
    for index, (dimension, low) in enumerate(zip(dimensions, least, strict=True)):
        high = dimension.high if dimension.high is not None else max(_SAMPLES) + low
        fit = [n for n in _SAMPLES if low < n <= high]
        fit += [n for n in range(low + 1, min(high, low + 8) + 1) if n not in fit]
        turned = fit[index % len(fit) :] + fit[: index % len(fit)] if fit else []
        column = turned[: _VARIANTS - 1]
        # Each symbol has its low in another variant, so that it is not always the least.
        column.insert(len(column) - index % (len(column) + 1), low)
        columns.append(column)
    count = min(map(len, columns))
    if count < 3:
        narrow = min(dimensions, key=lambda d: (d.high or 1 << 30) - d.low)
        raise UnsupportedError(
            f"the dimension {narrow.name!r} has a range of too few sizes to prove a program by: "
            "widen it to three or more, or export it as a fixed size"
        )
    first, *others = zip(*(column[:count] for column in columns), strict=True)
    # Few variants agree on polynomials of other symbols: so in one more each changes alone.
    alone = [
        (*first[:index], column[1], *first[index + 1 :])
        for index, column in enumerate(columns)
        if len(columns) > 1 and count < _VARIANTS
    ]
    return [first, *alone, *others]


def _unsupported(refusal: NotBounded) -> UnsupportedError:
    return UnsupportedError(
        f"the program cannot be exported with dynamic sizes: {refusal}\n  export it with fixed "
        "sizes (without dynamic_shapes), or leave fewer dimensions dynamic"
    )
