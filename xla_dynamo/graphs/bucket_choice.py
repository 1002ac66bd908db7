"""Choose, for the sizes of a call, which stay dynamic in a program, and up to which bounds."""

import dataclasses
import math
from collections.abc import Sequence

from xla_dynamo.graphs.buckets import Bucket, Buckets, bucket_of, variants_of
from xla_dynamo.graphs.call_sizes import CallSizes, TensorSizes
from xla_dynamo.lowerings.bounded.extents import Extent, Symbols, constant, symbol

# A size grows if so many calls, one after another, have each the same step to the one before.
_GROWS = 3
# A size is steady if so many calls, one after another, have the same.
_STEADY = 3
# A larger input is padded to so many times its elements at most.
_FEW_ELEMENTS, _MOST_PADDING = 1 << 20, 8


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The sizes that one executable is for.

    Attributes:
        extents: each symbol of the graph, as a number or as a symbol of the program.
        shown: for each symbol of the program, the number of one of the graph that it stands for.
        buckets: the sizes that each symbol of the program may have.
    """

    extents: tuple[Extent, ...]
    shown: tuple[int, ...]
    buckets: tuple[Bucket, ...]

    def values(self, values: Sequence[int]) -> tuple[int, ...]:
        """The values of the program's symbols, from those of the graph's."""
        return tuple(values[number] for number in self.shown)

    def names(self, sizes: CallSizes) -> dict[str, str | int]:
        """What the sizes of the graph may be, by name."""
        found: dict[str, str | int] = {}
        for name, extent in zip(sizes.names, self.extents, strict=True):
            number = extent.number
            if number is None:
                bucket = self.buckets[extent.terms[0][0][0]]
                found[name] = f"{bucket.low} to {bucket.high}"
            else:
                found[name] = number
        return found

    def serves(self, values: Sequence[int]) -> bool:
        """Whether it is right at these values of the graph's symbols."""
        own = self.values(values)
        return [e.at(own) for e in self.extents] == list(values) and all(
            bucket.low <= n <= bucket.high for n, bucket in zip(own, self.buckets, strict=True)
        )

    def down_to_least(self, sizes: CallSizes) -> "Choice":
        """The same with buckets that begin where the ranges of the graph's sizes do."""
        buckets = []
        for number, bucket in enumerate(self.buckets):
            pairs = zip(sizes.ranges, self.extents, strict=True)
            least = max(low for (low, _), extent in pairs if extent == symbol(number))
            buckets.append(Bucket(least, bucket.high))
        return dataclasses.replace(self, buckets=tuple(buckets))

    def variants(self) -> tuple[list[tuple[int, ...]], Symbols]:
        """The values at which the graph is lowered, and what they are to the program."""
        variants = variants_of(self.buckets)
        return variants, Symbols(list(zip(*variants, strict=True)), [b.low for b in self.buckets])


class BucketChoice:
    """The choice for each call, by what the calls before have shown.

    A size is a constant of the program until it changes: where all calls have the same size, a
    bound would only add padding. A dynamic dimension that Dynamo has seen to vary, or that is
    marked, has a bound from the first call. The exception is a first dimension where others vary,
    too. It is a batch as a rule, and stays a constant until it changes, unless the calls to come
    were shown, as to `precompile`.

    Sizes that were equal where the graph was traced, and are equal in a call, are one symbol, as
    Dynamo has it for the inputs of a graph; the caches of a model's layers have sizes of their own.
    """

    def __init__(self, sizes: CallSizes, buckets: Buckets) -> None:
        """Take the symbols of a graph, and the option."""
        self._sizes, self._buckets = sizes, buckets
        vary = list(zip(sizes.seen_to_vary, sizes.dims, strict=True))
        only_first = all(dim == 0 for varies, dim in vary if varies)
        self._changes = [varies and (dim != 0 or only_first) for varies, dim in vary]
        self._last: Sequence[int] | None = None
        self._step: list[int] = []
        self._growth = 0
        self._alike = [0] * len(sizes.dims)
        self._modest: dict[Choice, bool] = {}

    def make_all_dynamic_that_vary(self) -> None:
        """Leave dynamic whatever Dynamo has seen to vary, a batch too."""
        pairs = zip(self._changes, self._sizes.seen_to_vary, strict=True)
        self._changes = [changes or varies for changes, varies in pairs]

    def choose(self, values: Sequence[int]) -> Choice | None:
        """The choice for the symbols' values; None if none is dynamic, or one has no bucket."""
        if self._last is not None:
            for number, (before, now) in enumerate(zip(self._last, values, strict=True)):
                self._changes[number] |= before != now
            step = [b - a for a, b in zip(self._last, values, strict=True)]
            self._growth = self._growth + 1 if step == self._step and max(step) > 0 else 0
            self._step = step
            self._alike = [n + 1 if by == 0 else 0 for n, by in zip(self._alike, step, strict=True)]
        self._last = values
        return self._at(values)

    def next(self, choice: Choice, values: Sequence[int]) -> Choice | None:
        """The choice behind one that a size grows out of, as a cache does; None if none does."""
        if self._growth < _GROWS:
            return None
        ahead = {
            symbol(number): bucket.high + 1
            for number, (n, bucket) in enumerate(
                zip(choice.values(values), choice.buckets, strict=True)
            )
            if n > (bucket.low + bucket.high) // 2
        }
        pairs = zip(choice.extents, values, strict=True)
        return self._at([ahead.get(extent, value) for extent, value in pairs]) if ahead else None

    def _at(self, values: Sequence[int]) -> Choice | None:
        extents: list[Extent] = []
        known: dict[tuple[int, int], Extent] = {}
        shown: list[int] = []
        buckets: list[Bucket] = []
        for number, value in enumerate(values):
            if not self._changes[number]:
                extents.append(constant(value))
                continue
            alike = self._sizes.traced[number], value
            if alike not in known:
                ends, is_batch = self._range(alike, values), self._sizes.are_batches[number]
                bucket = bucket_of(value, self._buckets, ends, is_batch=is_batch)
                if bucket is None:
                    return None
                known[alike] = symbol(len(buckets))
                shown.append(number)
                buckets.append(bucket)
            extents.append(known[alike])
        if not buckets:
            return None
        choice = Choice(tuple(extents), tuple(shown), tuple(buckets))
        if self._buckets != "auto" or self._is_modest(choice):
            return choice
        finer = self.finer(choice, values)
        return finer if self._is_modest(finer) else None

    def _is_modest(self, choice: Choice) -> bool:
        """Whether no input is padded to many times its elements, as several dimensions can."""
        if choice not in self._modest:
            highs, lows = (
                [e.at(ends) for e in choice.extents]
                for ends in ([b.high for b in choice.buckets], [b.low for b in choice.buckets])
            )
            self._modest[choice] = all(
                (most := math.prod(e.at(highs) for e in known.shape)) <= _FEW_ELEMENTS
                or most <= _MOST_PADDING * math.prod(e.at(lows) for e in known.shape)
                for _, known in self._sizes.told
                if isinstance(known, TensorSizes)
            )
        return self._modest[choice]

    def finer(self, choice: Choice, values: Sequence[int], *, where_steady: bool = False) -> Choice:
        """The choice with the finest buckets inside of its own that have these values.

        With `where_steady`, those of sizes that the last calls had in common, as the number of the
        sequences that a server generates at a time; the others stay.
        """
        if self._buckets != "auto":
            return choice
        buckets = list(choice.buckets)
        for index, (number, bucket) in enumerate(zip(choice.shown, choice.buckets, strict=True)):
            if not where_steady or self._alike[number] + 1 >= _STEADY:
                ends = bucket.low, bucket.high
                buckets[index] = bucket_of(values[number], "auto", ends, is_batch=True) or bucket
        return dataclasses.replace(choice, buckets=tuple(buckets))

    def _range(self, alike: tuple[int, int], values: Sequence[int]) -> tuple[int, int]:
        """What all symbols may be that are one."""
        pairs = zip(self._sizes.traced, values, strict=True)
        ranges = [r for r, pair in zip(self._sizes.ranges, pairs, strict=True) if pair == alike]
        return max(low for low, _ in ranges), min(high for _, high in ranges)
