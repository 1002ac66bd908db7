"""Cut out of a function what depends on parameters alone, into a module of its own.

The second module runs when the parameters have changed (`frozen_inputs`); the function takes its
results as arguments. The cut is made in StableHLO, so it finds what the rules write too: casts of
weights to bfloat16, kernels in another layout, scales computed from running variances.
"""

import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.builders.functions import has_uses, is_used, operations_of, update_type
from xla_dynamo.lowerings.builders.operation_names import VIEWS, named
from xla_dynamo.lowerings.builders.values import Value, nbytes_of
from xla_dynamo.lowerings.passes.pack_weights import (
    Packed,
    PlannedCall,
    give_handles,
    packed_form,
    plain_calls,
)
from xla_dynamo.lowerings.target import ONEDNN_PACKED, Target

# Operations that have effects, or may give another value each time.
_IMPURE = named("custom_call rng rng_bit_generator") | {"func.return"}
# A frozen value takes memory beside the parameters that it is computed from. It is kept if it has
# at most so many times their bytes, or at most so few bytes.
_GROWTH, _SMALL = 2, 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """The arguments that a function has got, and the module that computes them.

    Attributes:
        keys: a key of each value: equal keys, equal values, whichever sizes a module is for. The
            function has an argument for each of them, behind the others.
        module: computes those of `computed`; None if there are none.
        arguments: the arguments of `module`, by the numbers that they had in the function.
        computed: the keys of its results.
        packed: the kernels that the function executes by handles, in an array that is its last
            argument if there are any. `call_packed` says what they compute.
        unused: the numbers of the roots that the function had as arguments and has no more.
    """

    keys: list[str]
    module: ir.Module | None
    arguments: list[int]
    computed: list[str]
    packed: list[Packed]
    unused: frozenset[int]


def freeze(
    main: func.FuncOp, roots: Sequence[int], known: Collection[str], target: Target
) -> Cut | None:
    """Cut the operations that depend on some arguments alone out of a function.

    Args:
        main: the function. It gets an argument for each value that is cut out, and loses those of
            its roots that it uses no more.
        roots: the numbers of the arguments that are parameters and buffers.
        known: keys of values that exist already: nothing has to compute them.
        target: the target of the function.

    Returns:
        What was cut out; None if there is nothing, and the function is as it was.
    """
    block = main.entry_block
    arguments = {number: block.arguments[number] for number in roots}
    frozen = list(arguments.values())
    if not target.is_cpu:  # elsewhere `frozen_inputs` does not look at running statistics
        frozen = [argument for argument in frozen if not _may_be_statistic(argument)]
    separation = _Separation(main, frozen)
    calls = separation.packable() if ONEDNN_PACKED in target.libraries else []
    values = separation.frontier(calls)
    if not values and not calls:
        return None
    keys = [separation.key(value) for value in values]
    # Values that are computed alike have one key.
    read = {v: separation.key(v) for call in calls for v in list(call.operands)[1:]}
    every = {key: v for v, key in read.items()} | dict(zip(keys, values, strict=True))
    pairs = [(k, v) for k, v in every.items() if k not in known]
    module, used = None, list[Value]()
    if pairs:
        module, used = separation.module([value for _, value in pairs])
    numbers = [ir.BlockArgument(value).arg_number for value in used]
    added = [block.add_argument(value.type, ir.Location.unknown()) for value in values]
    packed = give_handles(main, _planned(main, calls, read, target))
    for value, argument in zip(values, added, strict=True):
        value.replace_all_uses_with(argument)
    separation.erase()
    unused = frozenset(number for number, value in arguments.items() if not is_used(value))
    for number in sorted(unused, reverse=True):
        block.erase_argument(number)
    update_type(main)
    return Cut(keys, module, numbers, [key for key, _ in pairs], packed, unused)


def _planned(
    main: func.FuncOp, calls: Sequence[ir.Operation], keys: Mapping[Value, str], target: Target
) -> list[PlannedCall]:
    """The calls with frozen weights, which have these keys, and those of plain operands."""
    found = []
    for call in calls:
        form = packed_form(call)
        assert form is not None
        found.append(PlannedCall(call, form, tuple(keys[v] for v in list(call.operands)[1:])))
    known = set(calls)
    return found + plain_calls((op for op in operations_of(main) if op not in known), target)


class _Separation:
    """The operations of a function whose operands are roots, constants, or computed from them."""

    def __init__(self, main: func.FuncOp, roots: Sequence[Value]) -> None:
        self._main, self._roots = main, list(roots)
        self._keys: dict[Value, str] = {root: f"{i} {root.type}" for i, root in enumerate(roots)}
        # Operations by each of their results: those that depend on roots, and those on no argument.
        self._frozen: dict[Value, Any] = {}
        self._constant: dict[Value, Any] = {}
        self._live: list[Any] = []
        rooted = set(roots)
        for op in operations_of(main):
            frozen = [v in rooted or v in self._frozen for v in op.operands]
            constant = [v in self._constant for v in op.operands]
            fits = all(f or c for f, c in zip(frozen, constant, strict=True))
            if not fits or op.name in _IMPURE or _captures(op):
                self._live.append(op)
            else:
                found = self._frozen if any(frozen) else self._constant
                found.update(dict.fromkeys(op.results, op))

    def packable(self) -> list[ir.Operation]:
        """The packable calls that read frozen values and roots alone, beside their first one."""
        known = {*self._roots, *self._frozen}

        def is_frozen(call: ir.Operation) -> bool:
            read = list(call.operands)[1:]
            return all(v in known and self._is_worth_keeping(v) for v in read)

        pairs = ((op, packed_form(op)) for op in self._live)
        return [op for op, form in pairs if form is not None and form.packs and is_frozen(op)]

    def frontier(self, calls: Sequence[ir.Operation] = ()) -> list[Value]:
        """The values to keep: frozen operands of live operations, or the sources that these view.

        Without what `calls` read, which get handles of it. To keep a view would save nothing: XLA
        reads through it, or fuses it into its users.
        """
        found: dict[Value, None] = {}
        packed = set(calls)
        waiting = [v for op in self._live if op not in packed for v in op.operands]
        waiting += [op.operands[0] for op in calls]
        seen = set()
        while waiting:
            value = waiting.pop()
            op = self._frozen.get(value)
            if op is None or value in seen:
                continue
            seen.add(value)
            if op.name in VIEWS or not self._is_worth_keeping(value):
                waiting += op.operands
            else:
                found[value] = None
        return sorted(found, key=self.key)

    def _is_worth_keeping(self, value: Value) -> bool:
        dependencies = self._dependencies([value])
        sources = [root for root in self._roots if root in dependencies]
        return nbytes_of(value) <= max(_SMALL, _GROWTH * sum(map(nbytes_of, sources)))

    def _dependencies(self, values: Iterable[Value]) -> dict[Value, None]:
        """The values that some values are computed from, themselves included (a backward slice)."""
        found: dict[Value, None] = {}
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in found:
                found[value] = None
                waiting += self._operands(value)
        return found

    def key(self, value: Value) -> str:
        """A digest of how a value is computed from the roots."""
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
        if op.name == "func.call":  # it names a function, whose body may differ between modules
            parts += map(str, self._functions())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _functions(self) -> list[Any]:
        """The functions beside the main one, which it may call."""
        module = self._main.operation.parent.opview
        return [op for op in module.body.operations if op.operation != self._main.operation]

    def module(self, values: Sequence[Value]) -> tuple[ir.Module, list[Value]]:
        """A module that computes some values, and the roots that are its arguments."""
        dependencies = self._dependencies(values)
        used = [root for root in self._roots if root in dependencies]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for function in self._functions():
                function.operation.clone()
            types = [root.type for root in used], [value.type for value in values]
            main = func.FuncOp("main", types, visibility="public")
        block = main.add_entry_block()
        env = dict(zip(used, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in operations_of(self._main):
                if any(result in dependencies for result in op.results):
                    copy = op.clone()
                    for index, operand in enumerate(op.operands):
                        copy.operands[index] = env[operand]
                    env.update(zip(op.results, copy.results, strict=True))
            func.ReturnOp([env[value] for value in values])
        return module, used

    def erase(self) -> None:
        """Erase the operations that have no users any more."""
        made = list(dict.fromkeys([*self._frozen.values()]))
        self._keys.clear()
        self._frozen.clear()
        for op in reversed(made):
            if not has_uses(op):
                op.erase()


def _captures(op: ir.Operation) -> bool:
    """Whether a region of an operation uses a value that is defined outside it."""
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
