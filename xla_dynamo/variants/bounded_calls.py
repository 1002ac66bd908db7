"""Call a program at smaller sizes than it was compiled for: pad the inputs, cut the results."""

import collections
import itertools
import math
import operator
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from xla_dynamo.calls.calls import Call, replayed
from xla_dynamo.graphs.bucket_choice import Choice
from xla_dynamo.graphs.dynamic_sizes import TensorSizes
from xla_dynamo.memory.known_buffers import ready
from xla_dynamo.memory.restriding import restrided
from xla_dynamo.programs.lower_bounded import BoundedProgram, DynamicInput, DynamicResult

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


class _Pad(NamedTuple):
    """How one input is padded.

    Attributes:
        size, stride: those of the padded tensor.
        bounds, strides: likewise, with the parts of merged dimensions apart.
        given: the sizes of the input, with the parts apart.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    bounds: tuple[int, ...]
    strides: tuple[int, ...]
    given: tuple[int, ...]


class _Plan(NamedTuple):
    """What a call at some sizes does.

    Attributes:
        symbols: the symbols' values, as the program takes them.
        padding: which part of the computation is for the padding, if its time grows with each
            size.
        pads: the inputs, by number, that are padded.
        views: the outputs, by number, that are views of an input: size, stride, offset.
        cuts: the outputs, by number, that are cut.
        numbers: the outputs, by number, that are sizes.
    """

    symbols: torch.Tensor
    padding: float
    pads: list[tuple[int, _Pad]]
    views: list[tuple[int, tuple[tuple[int, ...], tuple[int, ...], int]]]
    cuts: list[tuple[int, _Cut]]
    numbers: list[tuple[int, int]]


class BoundedCall:
    """The call of a bounded program at any sizes up to its bounds.

    Attributes:
        choice: the sizes that the program was compiled for.
        compile_seconds: how long it was lowered and compiled.
        padding_seconds: how long all calls so far computed what is in no result, as far as their
            times grow with each size.
    """

    def __init__(
        self, bounded: BoundedProgram, call: Call, choice: Choice, compile_seconds: float
    ) -> None:
        """Take the program, its call at the bounds, and the sizes that it was compiled for."""
        self._bounded, self._call, self.choice = bounded, call, choice
        self.compile_seconds, self.padding_seconds = compile_seconds, 0.0
        self._plans: collections.OrderedDict[tuple[int, ...], _Plan] = collections.OrderedDict()
        self._inputs = [
            (number, output)
            for number, output in enumerate(bounded.program.outputs)
            if output.input is not None and number not in bounded.views
        ]
        self._needed = {output.input for _, output in self._inputs}
        self._needed |= {view.input for view in bounded.views.values()}

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
        pads = [(i, p) for i, of in self._bounded.padded.items() if (p := _pad_at(of, values))]
        views = [
            (index, (*_at(view.sizes, values), view.offset.at(values)))
            for index, view in self._bounded.views.items()
        ]
        symbols = torch.tensor(values, dtype=torch.int32, device="cpu")
        highs = (bucket.high for bucket in self.choice.buckets)
        filled = math.prod(n / high for n, high in zip(values, highs, strict=True))
        return _Plan(symbols, 1 - filled, pads, views, cuts, numbers)

    def _run(self, args: list[Any], plan: _Plan) -> list[Any]:
        start = time.perf_counter()
        given = {index: args[index] for index in self._needed}  # type: ignore[index]
        for index, pad in plan.pads:
            args[index] = _padded(args[index], pad)
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
        for index, (size, stride, offset) in plan.views:
            source = given[self._bounded.views[index].input]
            results[index] = restrided(source, size, stride, source.storage_offset() + offset)
        for index, output in self._inputs:
            tensor = given[output.input]
            results[index] = (
                replayed(tensor, output.replay, output.as_view) if output.replay else tensor
            )
        self.padding_seconds += (time.perf_counter() - start) * plan.padding
        return results


def _at(sizes: TensorSizes, values: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape, stride = sizes.shape, sizes.stride
    return tuple(e.at(values) for e in shape), tuple(e.at(values) for e in stride)


def _cut_at(result: DynamicResult, values: Sequence[int]) -> _Cut:
    size, stride = _at(result.sizes, values)
    parts = [part for dim in result.atoms for part in dim]
    is_merged = any(len(dim) > 1 for dim in result.atoms)
    bounds = tuple(bound for bound, _ in parts) if is_merged else None
    return _Cut(bounds, tuple(extent.at(values) for _, extent in parts), size, stride)


def _pad_at(given: DynamicInput, values: Sequence[int]) -> _Pad | None:
    """How an input is padded; None where its sizes are the bounds."""
    bounds = [bound for dim in given.atoms for bound, _ in dim]
    sizes = [extent.at(values) for dim in given.atoms for _, extent in dim]
    if sizes == bounds:
        return None
    strides = []
    for dim, stride in zip(given.atoms, given.stride, strict=True):
        of_dim = itertools.accumulate((b for b, _ in dim[:0:-1]), operator.mul, initial=stride)
        strides += list(of_dim)[::-1]
    return _Pad(given.size, given.stride, tuple(bounds), tuple(strides), tuple(sizes))


def _padded(tensor: torch.Tensor, how: _Pad) -> torch.Tensor:
    """A tensor at the bounds, with a smaller one's elements in front.

    What stands behind them is never part of a result. It is 0, with which XLA computes fast.

    Raises:
        UnsupportedTensor: the tensor has no memory, which torch would read all the same.
    """
    tensor = ready(tensor, tensor.data_ptr(), None)
    with torch.no_grad():
        whole = zeros(how.size, how.stride, tensor.dtype)
        _front(whole.as_strided(how.bounds, how.strides), how.given).copy_(
            tensor.reshape(how.given)
        )
    return whole


def zeros(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """What an input is padded with."""
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu").zero_()


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
    # Of a dimension that is expanded, one element is copied.
    size = [1 if stride == 0 else n for n, stride in zip(how.size, how.stride, strict=True)]
    made = torch.empty_strided(size, how.stride, dtype=whole.dtype, device=whole.device)
    return made.copy_(_front(front.reshape(how.size), size)).expand(how.size)


def _fits(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    """Whether a tensor has these strides, in all dimensions in which they matter."""
    each = zip(tensor.shape, tensor.stride(), stride, strict=True)
    return all(size <= 1 or own == wanted for size, own, wanted in each)
