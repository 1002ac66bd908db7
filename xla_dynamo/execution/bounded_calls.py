"""Call a program at smaller sizes than it was compiled for: pad the inputs, cut the results."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from xla_dynamo.execution.calls import Call, replayed
from xla_dynamo.graphs.bucket_choice import Choice
from xla_dynamo.programs.lower_bounded import BoundedProgram, OpenResult

# How many tuples of sizes a program knows the plans of.
_PLANS = 4096


class _Cut(NamedTuple):
    """How one output is cut from what the program returns.

    Attributes:
        bounds: the sizes of the parts of all dimensions, where some are merged; else None.
        taken: how many of each are taken.
        size, stride: those of the output.
    """

    bounds: tuple[int, ...] | None
    taken: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Plan(NamedTuple):
    """What a call at some sizes does.

    Attributes:
        symbols: the symbols' values, as the program takes them.
        cuts: the outputs, by number, that are cut.
        numbers: the outputs, by number, that are sizes.
    """

    symbols: torch.Tensor
    cuts: list[tuple[int, _Cut]]
    numbers: list[tuple[int, int]]


class BoundedCall:
    """The call of a bounded program at any sizes up to its bounds.

    Attributes:
        choice: the sizes that the program was compiled for.
    """

    def __init__(self, bounded: BoundedProgram, call: Call, choice: Choice) -> None:
        """Take the program, its call at the bounds, and the sizes that it was compiled for."""
        self._bounded, self._call, self.choice = bounded, call, choice
        self._plans: collections.OrderedDict[tuple[int, ...], _Plan] = collections.OrderedDict()
        self._inputs = [
            (number, output)
            for number, output in enumerate(bounded.program.outputs)
            if output.input is not None
        ]

    def at(self, values: tuple[int, ...]) -> Call:
        """The call at these values of the symbols."""
        plan = self._plans.get(values)
        if plan is None:
            plan = self._plans[values] = self._planned(values)
            if len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return lambda args: self._run(args, plan)

    def _planned(self, values: tuple[int, ...]) -> _Plan:
        cuts = [(index, _cut_at(result, values)) for index, result in self._bounded.cut.items()]
        numbers = [(index, e.at(values)) for index, e in self._bounded.numbers.items()]
        return _Plan(torch.tensor(values, dtype=torch.int32, device="cpu"), cuts, numbers)

    def _run(self, args: list[Any], plan: _Plan) -> list[Any]:
        given = {output.input: args[output.input] for _, output in self._inputs}  # type: ignore[index]
        for index, (size, stride) in self._bounded.padded.items():
            args[index] = padded(args[index], size, stride)
        args.append(plan.symbols)
        results = self._call(args)
        # A result that is two outputs is one tensor, as in eager.
        cut: dict[tuple[int, _Cut], torch.Tensor] = {}
        whole = {index: results[index] for index, _ in plan.cuts}
        for index, how in plan.cuts:
            key = (id(whole[index]), how)
            if key not in cut:
                cut[key] = _apply(whole[index], how)
            results[index] = cut[key]
        for index, number in plan.numbers:
            results[index] = number
        for index, output in self._inputs:
            tensor = given[output.input]
            results[index] = (
                replayed(tensor, output.replay, output.as_view) if output.replay else tensor
            )
        return results


def _cut_at(result: OpenResult, values: Sequence[int]) -> _Cut:
    size = tuple(e.at(values) for e in result.sizes.shape)
    stride = tuple(e.at(values) for e in result.sizes.stride)
    parts = [part for dim in result.atoms for part in dim]
    is_merged = any(len(dim) > 1 for dim in result.atoms)
    bounds = tuple(bound for bound, _ in parts) if is_merged else None
    return _Cut(bounds, tuple(extent.at(values) for _, extent in parts), size, stride)


def padded(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tensor of this size and these strides that begins with the elements of a smaller one.

    What stands behind them is never part of a result. It is 0, with which XLA computes fast.
    """
    if tuple(tensor.shape) == tuple(size):
        return tensor
    with torch.no_grad():
        whole = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).zero_()
        _front(whole, tensor.shape).copy_(tensor)
    return whole


def _front(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    for dim, taken in enumerate(size):
        if tensor.shape[dim] != taken:
            tensor = tensor.narrow(dim, 0, taken)
    return tensor


def _apply(whole: torch.Tensor, how: _Cut) -> torch.Tensor:
    """The output in what the program returned: a view of it, where the strides allow."""
    front = _front(whole if how.bounds is None else whole.reshape(how.bounds), how.taken)
    if how.bounds is None and _fits(front, how.stride):
        return front.as_strided(how.size, how.stride).detach()
    made = torch.empty_strided(how.size, how.stride, dtype=whole.dtype, device=whole.device)
    return made.copy_(front.reshape(how.size))


def _fits(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    """Whether a tensor has these strides, in all dimensions in which they matter."""
    each = zip(tensor.shape, tensor.stride(), stride, strict=True)
    return all(size <= 1 or own == wanted for size, own, wanted in each)
