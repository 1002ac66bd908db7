"""The bytes of a source file, and where in them a node of its syntax tree stands."""

import ast
import re
from collections.abc import Sequence

Span = tuple[int, int]  # offsets in bytes, as the columns of `ast` are


class SourceText:
    """One file: nodes become spans of bytes, and spans become text."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._starts = [0]
        for line in source.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def text(self, span: Span) -> str:
        """What stands in a span."""
        return self.source[span[0] : span[1]].decode()

    def span(self, node: ast.AST) -> Span:
        """Where a node stands, without parentheses around it."""
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    def with_parentheses(self, node: ast.AST) -> Span:
        """Where a node stands, with the parentheses around it.

        One of the node's neighbors must be an operator or a comma: the parentheses of a call with
        this argument alone would be taken for parentheses around the argument.
        """
        start, end = self.span(node)
        while True:
            before = len(self.source[:start].rstrip())
            after = end + len(self.source[end:]) - len(self.source[end:].lstrip())
            if self.source[before - 1 : before] != b"(" or self.source[after : after + 1] != b")":
                return start, end
            start, end = before - 1, after + 1

    def between(self, one: ast.AST, other: ast.AST) -> Span:
        """What stands between two neighbors: an operator, or a comma."""
        return self.with_parentheses(one)[1], self.with_parentheses(other)[0]

    def without(self, elements: Sequence[ast.AST], index: int) -> Span:
        """What a list with commas must lose so that it has one of its elements less."""
        spans = [self.with_parentheses(e) for e in elements]
        start, end = spans[index]
        if index + 1 < len(elements):
            return start, spans[index + 1][0]
        if comma := re.match(rb"\s*,", self.source[end:]):
            return start, end + comma.end()
        return spans[index - 1][1], end
