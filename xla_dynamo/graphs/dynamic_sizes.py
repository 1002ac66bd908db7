"""The symbols of a graph with dynamic sizes: where a call has their values, what they may be."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import sympy
import torch

from xla_dynamo.graphs.call_sizes import CallSizes, TensorSizes
from xla_dynamo.graphs.nodes import attribute_of
from xla_dynamo.graphs.sizes import name_of_size, numbers_of
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.bounded.extents import Extent
from xla_dynamo.torch_private import (
    FakeTensor,
    FakeTensorMode,
    pytree,
    sizes_seen_to_vary,
)

Node: TypeAlias = torch.fx.Node
# The size that a range of sizes without an upper end may have at most.
_LARGEST = 1 << 24


class NotBounded(Exception):
    """A graph cannot be compiled for bounds of its sizes; the message says what decided so."""


@dataclasses.dataclass(slots=True)
class _Symbol:
    """What is read off the inputs about a symbol: an entry of each attribute of `CallSizes`."""

    name: str
    dim: int | None
    is_batch: bool
    seen_to_vary: bool
    traced: int
    range: tuple[int, int]
    source: tuple[int, int | None]


class DynamicSizes:
    """The symbols of a graph.

    Attributes:
        calls: what a call needs to know of them.
        inputs: what is known of each input: the sizes of a tensor, the extent of an integer, or
            None for something else.
    """

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        """Read them off the fake values.

        Raises:
            NotBounded: some size is no polynomial of symbols that the inputs tell.
        """
        self._placeholders = gm.graph.find_nodes(op="placeholder")
        self._symbols: list[sympy.Symbol] = []
        self._known: dict[sympy.Expr, Extent] = {}
        self._extents: Sequence[Extent] | None = None
        self._symbols_read: list[_Symbol] = []
        for index, node in enumerate(self._placeholders):
            self._find_symbols(index, node.meta.get("val"))
        if not self._symbols:
            raise NotBounded("none of its inputs has a dynamic size of its own")
        self.inputs = [self.of_input(node) for node in self._placeholders]
        told = (
            (index, known)
            for index, known in enumerate(self.inputs)
            if isinstance(known, Extent) or (known is not None and known.is_dynamic)
        )
        read = self._symbols_read
        self.calls = CallSizes(
            names=tuple(r.name for r in read),
            dims=tuple(r.dim for r in read),
            are_batches=tuple(r.is_batch for r in read),
            seen_to_vary=tuple(r.seen_to_vary for r in read),
            traced=tuple(r.traced for r in read),
            ranges=tuple(r.range for r in read),
            sources=tuple(r.source for r in read),
            told=tuple(told),
        )
        for node in gm.graph.nodes:
            self._check(node)

    def _find_symbols(self, index: int, fake: Any) -> None:
        for dim, size in numbers_of(fake):
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                symbol, environment = size.node.expr, size.node.shape_env
                if symbol not in self._symbols:
                    if size.node.is_nested_int():
                        raise NotBounded("a size is that of jagged rows")
                    self._symbols.append(symbol)
                    hint = size.node.hint
                    self._symbols_read.append(
                        _Symbol(
                            name_of_size(size),
                            dim,
                            is_batch=False,
                            seen_to_vary=symbol in sizes_seen_to_vary(environment),
                            traced=-len(self._symbols) if hint is None else int(hint),
                            range=_range(getattr(environment, "var_to_range", {}).get(symbol)),
                            source=(index, dim),
                        )
                    )
                read = self._symbols_read[self._symbols.index(symbol)]
                if read.dim is None:
                    read.dim = dim
                read.is_batch |= dim == 0 and fake.dim() > 1

    def where(self, extents: Sequence[Extent]) -> "DynamicSizes":
        """The sizes with extents of other symbols in place of the symbols, one for each."""
        made = copy.copy(self)
        made._extents, made._known = extents, {}
        made.inputs = [made.of_input(node) for node in self._placeholders]
        return made

    def of_input(self, node: Node) -> TensorSizes | Extent | None:
        """What is known of an input."""
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            return self.of_tensor(node, fake)
        if isinstance(fake, torch.SymInt):
            return self.extent(node, fake)
        if isinstance(fake, torch.SymFloat | torch.SymBool):
            raise NotBounded(f"a number that is no size was left dynamic{describe(node)}")
        return None

    def of_tensor(self, node: Node, fake: torch.Tensor) -> TensorSizes:
        """The sizes of a node's fake tensor."""
        shape = tuple(self.extent(node, n) for n in fake.shape)
        return TensorSizes(shape, tuple(self.extent(node, n) for n in fake.stride()))

    def extent(self, node: Node, size: Any) -> Extent:
        """A size of a node's fake value as a polynomial of the symbols.

        Raises:
            NotBounded: it is none.
        """
        if not isinstance(size, torch.SymInt):
            return Extent.of({(): int(size)})
        expression = size.node.expr
        if expression in self._known:
            return self._known[expression]
        try:
            extent = self._polynomial(expression)
            if self._extents is not None:
                extent = extent.where(self._extents)
            return self._known.setdefault(expression, extent)
        except (sympy.polys.polyerrors.BasePolynomialError, ValueError) as error:
            raise NotBounded(f"a size is {size}, not a polynomial{describe(node)}") from error

    def _polynomial(self, expression: sympy.Expr) -> Extent:
        # Strides are products of Max(1, size); a window of keys begins at Max(0, length - window).
        for inner in [e for e in sympy.preorder_traversal(expression) if type(e).__name__ == "Max"]:
            if (largest := self._largest(inner.args)) is not None:
                expression = expression.xreplace({inner: largest})
        terms = sympy.Poly(expression, *self._symbols).terms()
        return Extent.of({_key(powers): _whole(factor) for powers, factor in terms})

    def _largest(self, args: Sequence[sympy.Expr]) -> sympy.Expr | None:
        """The one of two sizes that never is below the other; None if there is none."""
        if len(args) != 2:
            return None
        ranges = [read.range for read in self._symbols_read]
        for one, other in (args, args[::-1]):
            if self._polynomial(one - other).least(ranges) >= 0:
                return one
        return None

    def _check(self, node: Node) -> None:
        """Raise NotBounded if a value of a node is dynamic in a way that is not followed."""
        fakes = node.meta.get("val")
        for fake in fakes if isinstance(fakes, list | tuple) else [fakes]:
            if isinstance(fake, torch.SymFloat | torch.SymBool):
                raise NotBounded(f"it computes with sizes{describe(node)}")
            if isinstance(fake, torch.SymInt):
                self.extent(node, fake)
            elif isinstance(fake, torch.Tensor):
                if fake.is_conj() or fake.is_neg():
                    raise NotBounded(f"it conjugates or negates without a copy{describe(node)}")
                for size in (*fake.shape, *fake.stride(), fake.storage_offset()):
                    self.extent(node, size)

    def symbols(self) -> list[sympy.Symbol]:
        """The symbols as sympy has them."""
        return list(self._symbols)

    def extents(self) -> set[Extent]:
        """Every size of the trace, as far as it was asked for."""
        return set(self._known.values())

    def fake_values(self, gm: torch.fx.GraphModule, at: Sequence[int]) -> dict[Node, Any]:
        """The fake value of every node at these values of the symbols.

        They are those of the trace, with numbers for the symbols: no operator is called again.
        """
        mode = FakeTensorMode()
        return {node: self._fake_value(node, at, mode) for node in gm.graph.nodes}

    def _fake_value(self, node: Node, at: Sequence[int], mode: FakeTensorMode) -> Any:
        if node.op == "get_attr":
            return attribute_of(node)
        fakes = node.meta.get("val")
        return pytree.tree_map(lambda fake: self._number_for(node, fake, at, mode), fakes)

    def _number_for(self, node: Node, fake: Any, at: Sequence[int], mode: FakeTensorMode) -> Any:
        if isinstance(fake, torch.SymInt):
            return self.extent(node, fake).at(at)
        if not isinstance(fake, torch.Tensor):
            return fake
        sizes = self.of_tensor(node, fake)
        shape, stride = ([e.at(at) for e in extents] for extents in (sizes.shape, sizes.stride))
        # Not by an operator of the mode, which takes a millisecond.
        plain = torch.empty_strided(shape, stride, dtype=fake.dtype, device="meta")
        return FakeTensor(mode, plain, fake.device)


def _range(known: Any) -> tuple[int, int]:
    """The ends of a range of torch's; sizes of 0 and 1 are traced by themselves."""
    if known is None:
        return 2, _LARGEST
    lower = int(known.lower) if known.lower.is_Integer else 2
    upper = int(known.upper) if known.upper.is_Integer else _LARGEST
    return max(lower, 2), min(upper, _LARGEST)


def _key(powers: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i, power in enumerate(powers) for _ in range(power))


def _whole(factor: Any) -> int:
    if not factor.is_Integer:
        raise ValueError
    return int(factor)
