"""Values that lie in the memory of other ones: slices, transposes and reshapes, by strides.

What reads memory by strides has no need of them as arrays of their own. Torch's meta tensors tell
strides and offsets, and where a reshape has none.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.functions import has_uses
from xla_dynamo.lowerings.builders.values import Value, defining_operation, dtype_of, shape_of
from xla_dynamo.torch_private import invert_perm

Step: TypeAlias = Callable[[ir.Operation, torch.Tensor], torch.Tensor]


def viewed(value: Value) -> tuple[Value, torch.Tensor]:
    """The first value whose memory a value can be read from, which may be itself.

    Returns:
        That value, whose memory is row-major, and a tensor without data that has the shape of the
        value and lies as it does there.
    """
    chain: list[ir.Operation] = []
    base = value
    while (op := defining_operation(base)) is not None and op.name in _STEPS:
        chain.append(op)
        base = op.operands[0]
    while True:
        base = chain[-1].operands[0] if chain else value
        lies = _dense(base)
        try:
            for op in reversed(chain):
                lies = _STEPS[op.name](op, lies)
        except RuntimeError:  # a reshape of what does not lie in a row
            chain.pop()
        else:
            return base, lies


class Joined(NamedTuple):
    """The results of an operation, joined into one value.

    Attributes:
        value: that value.
        lie: how each result lies in its memory, which is row-major, as tensors without data.
        others: what computes the value from the results, in order.
    """

    value: Value
    lie: list[torch.Tensor]
    others: list[ir.Operation]

    def replace(self, value: Value) -> None:
        """Let another value take the place of the one, and erase what has computed that."""
        self.value.replace_all_uses_with(value)
        for op in reversed(self.others):
            op.erase()


def joined_results(op: ir.Operation) -> Joined | None:
    """What all results of an operation, which has several, are joined into; None if they are not.

    It is a concatenation of nothing but the results, each transposed and reshaped in whatever way.
    What follows it, and is nothing but that, belongs to it. The results lie there by strides.
    """
    others: list[ir.Operation] = []
    chains = [_chain(result, others) for result in op.results]
    ends = [_last(chain, result) for chain, result in zip(chains, op.results, strict=True)]
    uses = [_uses(end) for end in ends]
    if len(ends) < 2 or any(len(some) != 1 for some in uses):
        return None
    join = uses[0][0].owner
    if join.name != "stablehlo.concatenate" or len(join.operands) != len(ends):
        return None
    numbers = [use.operand_number for (use,) in uses if use.owner == join]
    if len(numbers) < len(ends):
        return None
    others.append(join)
    behind = _chain(join.results[0], others)
    for count in range(len(behind), -1, -1):
        last = _last(behind[:count], join.results[0])
        pieces = _pieces(join, behind[:count], _dense(last))
        lie = [_undone(chain, pieces[n]) for chain, n in zip(chains, numbers, strict=True)]
        if all(one is not None for one in lie):
            used = [step for step in others if step not in behind[count:]]
            return Joined(last, [one for one in lie if one is not None], used)
    return None


def _pieces(
    join: ir.Operation, behind: Sequence[ir.Operation], lies: torch.Tensor
) -> list[torch.Tensor | None]:
    """How the operands of a concatenation lie, if what follows it lies so."""
    dim = ir.IntegerAttr(join.attributes["dimension"]).value
    shapes = [shape_of(operand) for operand in join.operands]
    if behind and len({*shapes}) == 1:  # it may be a stack: the pieces are along a new dimension
        stacked = (*shapes[0][:dim], len(shapes), *shapes[0][dim:])
        if shape_of(behind[0].results[0]) == stacked:
            whole = _undone(behind[1:], lies)
            return [None] * len(shapes) if whole is None else list(whole.unbind(dim))
    whole = _undone(behind, lies)
    if whole is None:
        return [None] * len(shapes)
    return list(whole.split([shape[dim] for shape in shapes], dim))


def _uses(value: Value) -> list[ir.OpOperand]:
    """The uses of a value by operations whose results are used, or that have none."""
    return [use for use in value.uses if not _is_dead(use.owner)]


def _is_dead(op: ir.Operation) -> bool:
    return len(op.results) > 0 and not has_uses(op)


def _chain(value: Value, others: list[ir.Operation]) -> list[ir.Operation]:
    """The transposes and reshapes that alone use a value, and then each other.

    They are added to `others`, as are operations whose results nothing uses.
    """
    chain: list[ir.Operation] = []
    while True:
        uses = _uses(value)
        for use in value.uses:
            if _is_dead(use.owner) and use.owner not in others:
                others.append(use.owner)
        if len(uses) != 1 or uses[0].owner.name not in _UNDONE:
            return chain
        chain.append(uses[0].owner)
        others.append(chain[-1])
        value = chain[-1].results[0]


def _last(chain: Sequence[ir.Operation], value: Value) -> Value:
    """The result of a chain that begins with a value."""
    return chain[-1].results[0] if chain else value


def _undone(chain: Sequence[ir.Operation], lies: torch.Tensor | None) -> torch.Tensor | None:
    """How the operand of the first of some operations lies, if the result of the last does so.

    None if it does not lie by strides.
    """
    if lies is None:
        return None
    try:
        for op in reversed(chain):
            lies = _UNDONE[op.name](op, lies)
    except RuntimeError:
        return None
    return lies


def _dense(value: Value) -> torch.Tensor:
    return torch.empty(shape_of(value), dtype=dtype_of(value), device="meta")


def _permutation(op: ir.Operation) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))


def _sliced(op: ir.Operation, x: torch.Tensor) -> torch.Tensor:
    names = "start_indices", "limit_indices", "strides"
    given = [list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in names]
    return x[tuple(slice(*one) for one in zip(*given, strict=True))]


_STEPS: dict[str, Step] = {
    "stablehlo.reshape": lambda op, x: x.view(shape_of(op.results[0])),
    "stablehlo.transpose": lambda op, x: x.permute(_permutation(op)),
    "stablehlo.slice": _sliced,
}
_UNDONE: dict[str, Step] = {
    "stablehlo.reshape": lambda op, x: x.view(shape_of(op.operands[0])),
    "stablehlo.transpose": lambda op, x: x.permute(invert_perm(_permutation(op))),
}
