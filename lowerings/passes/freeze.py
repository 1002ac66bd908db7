"""Frozen inference: what a program computes from parameters alone becomes a program of its own.

The second program runs when the parameters have changed (`frozen_inputs`), the first takes its
results as arguments. The cut is made in StableHLO, so it finds what the rules write too: casts of
weights to bfloat16, kernels in another form, scales made of running variances.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.programs.program import Frozen, Input

Value: TypeAlias = ir.Value

# Not worth keeping: XLA reads through these, or fuses them into what uses them.
_VIEWS = {
    "stablehlo." + name for name in ("broadcast_in_dim", "reshape", "reverse", "slice", "transpose")
}
# What has effects, or may give another value each time.
_IMPURE = {"stablehlo.custom_call", "stablehlo.rng", "stablehlo.rng_bit_generator", "func.return"}
# A value is kept that is at most so many times as large as all that it is made of, or this small.
_GROWTH, _SMALL = 2, 1 << 16


def freeze(
    main: func.FuncOp,
    inputs: Sequence[Input],
    first: int,
    constants: Mapping[Value, torch.Tensor],
    known: Collection[str],
    platform: str,
) -> tuple[list[Input], Frozen | None]:
    """Cut what depends on some arguments alone out of a function under construction.

    Args:
        main: the function, whose block ends with its return. It gets an argument for each value.
        inputs: the parameters and buffers, its arguments from number `first` on.
        first: see `inputs`.
        constants: other arguments, that are the same at each call.
        known: keys of values that there are already: nothing has to compute them.
        platform: the PJRT platform that the function is for.

    Returns:
        The inputs that are still arguments, and the values; None if there are none.
    """
    block = main.entry_block
    roots = list(block.arguments)[first : first + len(inputs)]
    if platform != "cpu":  # elsewhere `frozen_inputs` does not look at running statistics
        roots = [root for root in roots if not _may_be_statistic(root)]
    cut = _Cut(main, roots, list(constants))
    values = cut.frontier()
    if not values:
        return list(inputs), None
    keys = [cut.key(value) for value in values]
    pairs = [(k, v) for k, v in zip(keys, values, strict=True) if k not in known]
    module, used, numerals = None, list[Value](), list[Value]()
    if pairs:
        module, used, numerals = cut.program([value for _, value in pairs])
    numbers = [root.arg_number - first for root in used]
    for value in values:
        argument = block.add_argument(value.type, ir.Location.unknown())
        value.replace_all_uses_with(argument)
    cut.erase()
    kept = []
    for number, input_ in reversed(list(enumerate(inputs))):
        if any(True for _ in block.arguments[first + number].uses):
            kept.append(input_)
        else:
            block.erase_argument(first + number)
    read, given = [inputs[n] for n in numbers], [constants[value] for value in numerals]
    return kept[::-1], Frozen(keys, module, read, given, [key for key, _ in pairs])


class _Cut:
    """The operations of a function that read nothing but roots and constants."""

    def __init__(
        self, main: func.FuncOp, roots: Sequence[Value], constants: Sequence[Value]
    ) -> None:
        self._main = main
        self._keys: dict[Value, str] = {root: f"{i} {root.type}" for i, root in enumerate(roots)}
        self._keys |= {value: f"constant {i} {value.type}" for i, value in enumerate(constants)}
        self._roots, self._arguments = list(roots), list(constants)
        # Operations by each of their results: those of roots, and those of no argument at all.
        self._frozen: dict[Value, Any] = {}
        self._constant: dict[Value, Any] = {}
        self._live: list[Any] = []
        rooted = set(roots)
        for op in (op.operation for op in main.entry_block.operations):
            reads = [v in rooted or v in self._frozen for v in op.operands]
            same = [v in self._constant or v in self._arguments for v in op.operands]
            fits = all(r or s for r, s in zip(reads, same, strict=True))
            if not fits or op.name in _IMPURE or _captures(op):
                self._live.append(op)
            else:
                (self._frozen if any(reads) else self._constant).update(
                    dict.fromkeys(op.results, op)
                )

    def frontier(self) -> list[Value]:
        """The values to keep: what the rest reads, or what that is a view of."""
        found: dict[Value, None] = {}
        waiting = [v for op in self._live for v in op.operands]
        seen = set()
        while waiting:
            value = waiting.pop()
            op = self._frozen.get(value)
            if op is None or value in seen:
                continue
            seen.add(value)
            if op.name in _VIEWS or not self._is_worth_keeping(value):
                waiting += op.operands
            else:
                found[value] = None
        return sorted(found, key=self.key)

    def _is_worth_keeping(self, value: Value) -> bool:
        size = _bytes(value)
        below = self._below([value])
        sources = [root for root in self._roots if root in below]
        return size <= max(_SMALL, _GROWTH * sum(map(_bytes, sources)))

    def _below(self, values: Iterable[Value]) -> dict[Value, None]:
        """All that some values are made of, themselves included."""
        found: dict[Value, None] = {}
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in found:
                found[value] = None
                waiting += self._operands(value)
        return found

    def key(self, value: Value) -> str:
        """A digest of how a value is made of the roots."""
        waiting = [value]
        while waiting:
            value = waiting[-1]
            missing = [v for v in self._operands(value) if v not in self._keys]
            waiting += missing
            if not missing:
                waiting.pop()
                if value not in self._keys:
                    self._keys[value] = self._digest(value)
        return self._keys[value]

    def _operands(self, value: Value) -> list[Value]:
        op = self._frozen.get(value) or self._constant.get(value)
        return [] if op is None else list(op.operands)

    def _digest(self, value: Value) -> str:
        op = self._frozen.get(value) or self._constant[value]
        number = list(op.results).index(value)
        attributes = [op.attributes[i] for i in range(len(op.attributes))]
        parts = [op.name, *(f"{a.name} = {a.attr}" for a in attributes), str(number)]
        parts += [str(r.type) for r in op.results]
        if any(len(region.blocks) for region in op.regions):
            parts.append(str(op))
        parts += [self._keys[v] for v in op.operands]
        if op.name == "func.call":  # by name: what does the name mean here?
            parts += map(str, self._functions())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _functions(self) -> list[Any]:
        """The functions beside the main one, which it may call."""
        module = self._main.operation.parent.opview
        return [op for op in module.body.operations if op.operation != self._main.operation]

    def program(self, values: Sequence[Value]) -> tuple[ir.Module, list[Value], list[Value]]:
        """A module that computes some values, and its arguments: roots and constants."""
        below = self._below(values)
        used = [root for root in self._roots if root in below]
        constants = [value for value in self._arguments if value in below]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for function in self._functions():
                function.operation.clone()
            types = [v.type for v in (*used, *constants)], [value.type for value in values]
            main = func.FuncOp("main", types, visibility="public")
        block = main.add_entry_block()
        env = dict(zip((*used, *constants), block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in (op.operation for op in self._main.entry_block.operations):
                if any(result in below for result in op.results):
                    copy = op.clone()
                    for index, operand in enumerate(op.operands):
                        copy.operands[index] = env[operand]
                    env.update(zip(op.results, copy.results, strict=True))
            func.ReturnOp([env[value] for value in values])
        return module, used, constants

    def erase(self) -> None:
        """Take out what nobody reads any more."""
        made = list(dict.fromkeys([*self._frozen.values()]))
        self._keys.clear()
        self._frozen.clear()
        for op in reversed(made):
            if not any(True for result in op.results for _ in result.uses):
                op.erase()


def _captures(op: ir.Operation) -> bool:
    """Whether a region of an operation reads what is made outside it."""
    inside: set[Value] = set()
    outside = False

    def visit(inner: ir.Operation) -> ir.WalkResult:
        nonlocal outside
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        if inner != op:
            outside |= any(operand not in inside for operand in inner.operands)
            inside.update(inner.results)
        return ir.WalkResult.ADVANCE

    if any(len(region.blocks) for region in op.regions):
        op.walk(visit, ir.WalkOrder.PRE_ORDER)
    return outside


def _may_be_statistic(value: Value) -> bool:
    type_ = ir.RankedTensorType(value.type)
    return type_.rank == 1 and isinstance(type_.element_type, ir.FloatType)


def _bytes(value: Value) -> int:
    type_ = ir.RankedTensorType(value.type)
    count = 1
    for n in type_.shape:
        count *= n
    element = type_.element_type
    return count * max(getattr(element, "width", 64) // 8, 1)
