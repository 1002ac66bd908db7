"""Buckets: the bounds that dynamic sizes are compiled for, and the sizes that prove them."""

import bisect
import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

# Either "auto", or the bounds in ascending order.
Buckets: TypeAlias = str | tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """The sizes from `low` to `high`, which one executable serves."""

    low: int
    high: int

    def middle(self, number: int) -> int:
        """A size within: another one for each number, if there are so many.

        Its distances to both ends have no common divisor. So no remainder by another number than 1
        is the same at the three sizes, and what depends on a remainder shows.
        """
        center = (self.low + self.high) / 2
        inner = sorted(range(self.low + 1, self.high), key=lambda n: (abs(n - center), n))
        fit = [n for n in inner if math.gcd(self.high - n, n - self.low) == 1]
        return fit[number % len(fit)]


def bucket_of(
    size: int, buckets: Buckets, ends: tuple[int, int], *, is_batch: bool = False
) -> Bucket | None:
    """The bucket of a size between these ends; None if it has none.

    "auto" takes powers of two. For lengths they begin with 32, below which a program is hardly
    faster. The time of a program grows with its batch from the beginning: there they begin with 4,
    and from 32 on those times 1.5 come between.
    """
    least, most = ends
    if not least <= size <= most:
        return None
    if isinstance(buckets, str):
        first = 4 if is_batch else 32
        high = max(1 << (size - 1).bit_length(), first)
        low = 2 if high == first else high // 2 + 1
        if is_batch and high > 32:
            between = high * 3 // 4
            high, low = (between, low) if size <= between else (high, between + 1)
    else:
        index = bisect.bisect_left(buckets, size)
        if index == len(buckets):
            return None
        high = buckets[index]
        low = buckets[index - 1] + 1 if index else least
    high = min(high, most)
    # Three sizes at least, at which the program is lowered.
    low = max(min(low, high - 2), least)
    return Bucket(low, high) if high - low >= 2 else None


def variants_of(buckets: Sequence[Bucket]) -> list[tuple[int, ...]]:
    """The values of the symbols at which a graph is lowered.

    The first are the bounds. In one more for each symbol, it alone has its low: so what depends on
    a symbol differs from what is at the bounds, and of two symbols whose buckets overlap neither is
    the smaller one in all variants. In the last, all have sizes between.
    """
    highs = tuple(b.high for b in buckets)
    alone = [(*highs[:i], b.low, *highs[i + 1 :]) for i, b in enumerate(buckets)]
    middles = []
    for index, bucket in enumerate(buckets):
        before = [b for b in buckets[:index] if b.low <= bucket.high and bucket.low <= b.high]
        middles.append(bucket.middle(len(before)))
    return [highs, *alone, tuple(middles)]
