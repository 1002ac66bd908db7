"""Zeros of the sizes of a graph's results, for calls that only compile."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from xla_dynamo.calls.calls import Call
from xla_dynamo.graphs.sizes import values_at


def placeholder_call(gm: torch.fx.GraphModule, unread: Callable[[], int] = lambda: 0) -> Call:
    """A call that computes nothing: its results are zeros, or inputs where they are inputs.

    `unread` says how many of the last results nobody reads, which are None.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    all_results: Any = gm.graph.output_node().args[0]

    def call(args: list[Any]) -> list[Any]:
        none = [None] * unread()
        results = all_results[: len(all_results) - len(none)]
        given = dict(zip(placeholders, args, strict=True))
        fakes = {node: node.meta.get("val") for node in results if isinstance(node, torch.fx.Node)}
        symbols = _symbols([node.meta.get("val") for node in placeholders], args)
        try:
            made = {node: _zeros(fake, symbols) for node, fake in fakes.items()}
        except KeyError:  # a symbol that no input has as a size of its own
            values = values_at(gm, args)
            made = {node: _zeros(values[node], {}) for node in fakes}
        args.clear()
        return [*(given.get(node, made.get(node, node)) for node in results), *none]

    return call


def _symbols(fakes: Sequence[Any], args: Sequence[Any]) -> dict[sympy.Symbol, Any]:
    """The values of the symbols that are sizes, strides or numbers of the inputs."""
    found: dict[sympy.Symbol, Any] = {}
    for fake, given in zip(fakes, args, strict=True):
        pairs = [(fake, given)]
        if isinstance(fake, torch.Tensor) and isinstance(given, torch.Tensor):
            pairs = [*zip(fake.shape, given.shape, strict=True)]
            pairs += zip(fake.stride(), given.stride(), strict=True)
        for size, value in pairs:
            if isinstance(size, torch.SymInt | torch.SymFloat) and size.node.expr.is_symbol:
                found[size.node.expr] = value
    return found


def _zeros(fake: Any, symbols: Mapping[sympy.Symbol, Any]) -> Any:
    """Zeros for a fake tensor, or the number that a dynamic one is at these values of symbols."""
    if isinstance(fake, torch.Tensor):
        size, stride = ([_number(n, symbols) for n in s] for s in (fake.shape, fake.stride()))
        empty = torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device)
        return empty.zero_()
    return _number(fake, symbols)


def _number(value: Any, symbols: Mapping[sympy.Symbol, Any]) -> Any:
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    expression = value.node.expr
    if any(symbol not in symbols for symbol in expression.free_symbols):
        raise KeyError(expression)
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
    return kind(expression.xreplace(symbols))
