"""All the single faults that a file can have: each replaces the text of one node by another."""

import ast
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence

from tests.faults.source_text import SourceText, Span

KINDS = (
    "comparison",
    "keyword",
    "off by one",
    "swapped",
    "negated",
    "and/or",
    "lock",
    "key",
    "guard",
    "statement",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_OPPOSITES = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
_COMPARISON = re.compile(r"<=|>=|==|!=|<|>|\bis\s+not\b|\bis\b|\bnot\s+in\b|\bin\b")
_NOT_SWAPPED = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", "min", "max"}
_FOR_PEOPLE = ("help", "metavar", "description", "reason", "title")
_OF_A_LOCK = re.compile(r"(?<![a-z])(r?locks?|locked|running|guards?)(?![a-z])", re.IGNORECASE)
_OF_A_KEY = re.compile("key|signature|fingerprint|identity", re.IGNORECASE)
_OF_A_CACHE = re.compile("cache|memo|known|kept|made|seen", re.IGNORECASE)
_OF_A_MESSAGE = re.compile(r"_?(log|logger|logging|warnings)\.")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One replacement in one file, which leaves every line its number."""

    path: str  # from the root of the repository
    kind: str
    line: int
    start: int  # in bytes
    end: int
    before: str
    after: str
    lines: tuple[int, int]  # the first and the last line of what is wrong
    statement: tuple[int, int]  # and of the statement that it is in

    def put_into(self, source: bytes) -> bytes:
        """The text of the file, with the fault."""
        assert source[self.start : self.end].decode() == self.before, f"{self.path} has changed"
        return source[: self.start] + self.after.encode() + source[self.end :]

    def change(self) -> str:
        """Both texts on one line, each without most of a long beginning or end that they share."""
        texts = [" ".join(text.split()) for text in (self.before, self.after)]
        if len(texts[0]) > 80:
            same = max(_shared(*texts) - 20, 0)
            texts = ["…" * (same > 0) + text[same:] for text in texts]
            same = max(_shared(*(text[::-1] for text in texts)) - 20, 0)
            texts = [text[: len(text) - same] + "…" * (same > 0) for text in texts]
        return f"{texts[0]} → {texts[1] or '(nothing)'}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.change()}"


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@functools.cache
def faults_of(path: str, source: bytes) -> tuple[Fault, ...]:
    """The faults of a file, some of which Python may refuse: see `compiles`."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return tuple(dict.fromkeys(finder.found))


def compiles(fault: Fault, source: bytes) -> bool:
    """Whether a file with the fault is one of Python, and another one than before."""
    text = fault.put_into(source)
    try:
        compile(text, fault.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))


class _Finder(ast.NodeVisitor):
    """Goes through the bodies of functions; messages, annotations and assertions stay right."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.text = path, SourceText(source)
        self.found: list[Fault] = []
        self._functions: list[str] = []
        self._statement = (1, 1)

    def visit(self, node: ast.AST) -> None:
        # Before Python 3.12, nodes inside an f-string stand nowhere in the text.
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Call) and _OF_A_MESSAGE.match(ast.unparse(node.func)):
            return
        outer = self._statement
        if isinstance(node, ast.stmt):
            self._statement = _lines_of_header(node)
        if self._functions and not isinstance(node, Function):
            for kind, span, after, *lines in self._sites(node):
                self._add(kind, span, after, *lines)
        super().visit(node)
        self._statement = outer

    def _add(self, kind: str, span: Span, after: str, lines: tuple[int, int] | None = None) -> None:
        before = self.text.text(span)
        after += "\n" * (before.count("\n") - after.count("\n"))
        line = self.text.source[: span[0]].count(b"\n") + 1
        lines = lines or (line, line + before.count("\n"))
        # Where a statement is passed by, it does not matter whether what it guards is left out.
        statement = lines if kind == "guard" else self._statement
        self.found.append(Fault(self.path, kind, line, *span, before, after, lines, statement))

    # What is left out, and what is gone through.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name not in ("__repr__", "__str__"):
            self._go_through(node.name, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._go_through("lambda", [node.body])

    def _go_through(self, name: str, body: Sequence[ast.AST]) -> None:
        self._functions.append(name)
        for node in body:
            self.visit(node)
        self._functions.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for below in node.orelse:
                self.visit(below)
        else:
            self.generic_visit(node)

    # The kinds of faults that each node can have: kind, span, what stands there instead, and the
    # lines that a test must reach if they are not those of the span.

    def _sites(self, node: ast.AST) -> Iterator[tuple]:
        match node:
            case ast.Compare():
                yield from self._comparisons(node)
            case ast.BoolOp():
                yield from self._and_or(node)
            case ast.BinOp():
                yield from self._off_by_one([node.left, node.right])
                yield from self._swapped_operands(node)
            case ast.Subscript():
                yield from self._off_by_one([node.slice])
                if _OF_A_CACHE.search(ast.unparse(node.value)):
                    yield from self._shorter(node.slice)
            case ast.Call():
                yield from self._of_call(node)
            case ast.Dict():
                for key in node.keys:
                    yield from self._shorter(key)
            case ast.Return() if _OF_A_KEY.search(self._functions[-1]):
                yield from self._shorter_inside(node.value)
            case ast.Assign() if any(_is_key(target) for target in node.targets):
                yield from self._shorter_inside(node.value)
            case ast.IfExp():
                yield self._negated(node.test)
            case ast.comprehension():
                yield from map(self._negated, node.ifs)
            case ast.If() if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield self._negated(node.test)
                yield from self._guard(node)
            case ast.With():
                yield from self._lock(node)
            case ast.Expr(value=ast.Call(func=function)):
                if not _OF_A_MESSAGE.match(ast.unparse(function)):
                    yield "statement", self.text.span(node), "pass"

    def _text(self, node: ast.AST) -> str:
        return self.text.text(self.text.span(node))

    def _instead(self, node: ast.AST, part: Span, by: str) -> tuple[Span, str]:
        """A node's whole span, and its text with another part."""
        start, end = self.text.span(node)
        return (start, end), self.text.text((start, part[0])) + by + self.text.text((part[1], end))

    def _comparisons(self, node: ast.Compare) -> Iterator[tuple]:
        operands = [node.left, *node.comparators]
        for left, right in itertools.pairwise(operands):
            part = self.text.between(left, right)
            text = self.text.text(part)
            if "#" in text or not (operator := _COMPARISON.search(text)):
                continue
            opposite = _OPPOSITES[" ".join(operator[0].split())]
            by = text[: operator.start()] + opposite + text[operator.end() :]
            yield "comparison", *self._instead(node, part, by)

    def _and_or(self, node: ast.BoolOp) -> Iterator[tuple]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            part = self.text.between(left, right)
            text = self.text.text(part)
            if "#" not in text:
                yield "and/or", *self._instead(node, part, text.replace(old, new))

    def _off_by_one(self, nodes: Sequence[ast.AST | None]) -> Iterator[tuple]:
        """Of the integers that are among some nodes, as they stand, negated or in slices."""
        for node in nodes:
            match node:
                case ast.Constant(value=int(value)) if not isinstance(value, bool):
                    yield "off by one", self.text.span(node), str(value + 1)
                case ast.UnaryOp(op=ast.USub()):
                    yield from self._off_by_one([node.operand])
                case ast.Slice():
                    yield from self._off_by_one([node.lower, node.upper, node.step])
                case ast.Tuple():
                    yield from self._off_by_one(node.elts)

    def _swapped_operands(self, node: ast.BinOp) -> Iterator[tuple]:
        if not isinstance(node.op, ast.Sub | ast.Div | ast.Mod | ast.FloorDiv):
            return
        strings = (ast.JoinedStr, ast.Constant)
        if isinstance(node.left, strings) and not _is_number(node.left):
            return
        if not isinstance(node.right, ast.JoinedStr) and not _is_text(node.right):
            yield from self._swapped(node, node.left, node.right)

    def _swapped(self, node: ast.AST, left: ast.AST, right: ast.AST) -> Iterator[tuple]:
        spans = [self.text.with_parentheses(n) for n in (left, right)]
        first, second = map(self.text.text, spans)
        between = self.text.text((spans[0][1], spans[1][0]))
        if first == second or "#" in between:
            return
        if isinstance(node, ast.BinOp) and isinstance(left, ast.BinOp) and first[0] != "(":
            first = f"({first})"
        part = (spans[0][0], spans[1][1])
        yield "swapped", *self._instead(node, part, second + between + first)

    def _of_call(self, node: ast.Call) -> Iterator[tuple]:
        name = ast.unparse(node.func).rpartition(".")[2]
        elements = sorted((*node.args, *node.keywords), key=self.text.span)
        for index, element in enumerate(elements):
            if not isinstance(element, ast.keyword) or element.arg in (None, *_FOR_PEOPLE):
                continue
            part = self.text.without(elements, index) if elements[1:] else self.text.span(element)
            yield "keyword", *self._instead(node, part, "")
        plain = [a for a in node.args[:2] if not isinstance(a, ast.Starred)]
        if len(plain) == 2 and name not in _NOT_SWAPPED:
            yield from self._swapped(node, *plain)
        if name == "range":
            yield from self._off_by_one(node.args)
        if name in ("get", "setdefault", "pop") and isinstance(node.func, ast.Attribute):
            yield from self._shorter(node.args[0] if node.args else None)

    def _shorter_inside(self, value: ast.AST | None) -> Iterator[tuple]:
        for node in ast.walk(value) if value else ():
            yield from self._shorter(node)

    def _shorter(self, node: ast.AST | None) -> Iterator[tuple]:
        """A tuple with an element less, for each of its elements; it stays a tuple."""
        if not isinstance(node, ast.Tuple) or len(node.elts) < 2:
            return
        for index in range(len(node.elts)):
            span, by = self.text.without(node.elts, index), ""
            if len(node.elts) == 2:
                (left,) = (e for i, e in enumerate(node.elts) if i != index)
                first, last = map(self.text.with_parentheses, node.elts)
                span, by = (first[0], last[1]), self.text.text(self.text.with_parentheses(left))
                followed = self.text.source[last[1] :].lstrip()[:1] == b","
                by += "" if followed else ","
            yield "key", *self._instead(node, span, by)

    def _negated(self, test: ast.expr) -> tuple:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            operand = self.text.text(self.text.with_parentheses(test.operand))
            return "negated", self.text.span(test), operand
        return "negated", self.text.span(test), f"not ({self._text(test)})"

    def _guard(self, node: ast.If) -> Iterator[tuple]:
        (first, *others) = node.body
        if node.orelse or others or not isinstance(first, ast.Return | ast.Continue):
            return
        if self._text(node).startswith("if"):  # and not `elif`
            yield "guard", self.text.span(node), "pass", (first.lineno, first.end_lineno)

    def _lock(self, node: ast.With) -> Iterator[tuple]:
        items = [item.context_expr for item in node.items]
        for index, item in enumerate(node.items):
            if not _OF_A_LOCK.search(ast.unparse(item.context_expr)) or item.optional_vars:
                continue
            if len(items) == 1:
                span = (self.text.span(node)[0], self.text.with_parentheses(items[0])[1])
                yield "lock", span, "if True"
            else:
                yield "lock", self.text.without(items, index), ""


def _lines_of_header(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, without those of the statements in it."""
    body = getattr(node, "body", None)
    end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
    return node.lineno, end


def _is_key(target: ast.AST) -> bool:
    name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
    return "key" in name.lower()


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
