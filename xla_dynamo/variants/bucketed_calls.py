"""Calls of a graph with dynamic sizes, by buckets: one executable for all sizes up to a bound."""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_dynamo.calls.calls import Call
from xla_dynamo.graphs.bucket_choice import BucketChoice, Choice
from xla_dynamo.graphs.dynamic_sizes import NotBounded
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_graph import SourceGraph
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower_bounded import BoundedProgram, lower_bounded
from xla_dynamo.variants.bounded_calls import BoundedCall
from xla_dynamo.variants.executable_cache import ExecutableCache
from xla_dynamo.variants.meanwhile import Meanwhile, only_looks
from xla_dynamo.variants.variant_keys import VariantKey, bounded_variant

# A graph of which so many buckets were refused, and none was compiled, is not tried again.
_TRIALS = 2
# A smaller bucket is worth it when padding took so many times as long as its compilation, which
# takes other calls' cores; and that takes so many seconds, also where the disk cache had the last.
_WORTH, _LEAST = 4, 1.0


class BucketedCalls:
    """The variants of a graph that are for buckets."""

    def __init__(
        self,
        source: SourceGraph,
        request: Request,
        variants: ExecutableCache[Any],
        compile: Callable[..., BoundedCall],
        tell: Callable[[Mapping[str, Any], str], None],
        meanwhile: Meanwhile,
    ) -> None:
        """Take a graph whose facts have dynamic sizes, and the table of its variants.

        `compile` compiles a bounded program, and `tell` is told of refusals. `meanwhile` says what
        calls do while a bucket is compiled in the background.
        """
        assert source.facts.sizes is not None
        self._source, self._sizes = source, source.facts.sizes
        self._request, self._compile, self._tell = request, compile, tell
        self._meanwhile = meanwhile
        self._choice = BucketChoice(self._sizes, request.options.buckets)
        self._variants = variants
        self._refused: set[VariantKey] = set()
        self._finer: dict[VariantKey, list[VariantKey]] = {}
        self._looked_ahead: set[VariantKey] = set()
        self._choosing = threading.Lock()

    def find(self, args: Sequence[Any]) -> Call | None:
        """The call of the bucket that these inputs are in; None if there is none for them.

        A bucket that is not compiled yet is compiled by this call or in the background, as
        `Options.while_compiling` says.
        """
        if (values := self._sizes.values(args)) is None:
            return None
        with self._choosing:
            if only_looks():
                self._choice.make_all_dynamic_that_vary()
            choice = self._choice.choose(values)
        if choice is None or (len(self._refused) >= _TRIALS and not self._compiled()):
            return None
        key = bounded_variant(choice, args)
        if key in self._refused:
            return None
        bounded = self._finest(key, values)
        if bounded is None:
            return self._new(self._steady(key, values), values)
        if bounded.padding_seconds > _WORTH * max(bounded.compile_seconds, _LEAST):
            self._refine(key, bounded, values)
        if key not in self._looked_ahead:
            self._look_ahead(key, values)
        return self._meanwhile.ahead() or bounded.at(bounded.choice.values(values))

    def _finest(self, key: VariantKey, values: Sequence[int]) -> BoundedCall | None:
        """The call of a smaller bucket inside, if there is one at these values, else the key's."""
        for finer in self._finer.get(key, ()):
            if (
                _choice(finer).serves(values)
                and (bounded := self._variants.find(finer)) is not None
            ):
                return bounded
        return self._variants.find(key)

    def _steady(self, key: VariantKey, values: Sequence[int]) -> VariantKey:
        """The key of a smaller bucket inside a new one, where sizes are steady; else its own."""
        smaller = self._choice.finer(_choice(key), values, where_steady=True)
        finer = key._replace(bounds=smaller)
        if finer == key or finer in self._refused:
            return key
        known = self._finer.setdefault(key, [])
        if finer not in known:
            known.insert(0, finer)
        return finer

    def _refine(self, key: VariantKey, bounded: BoundedCall, values: Sequence[int]) -> None:
        """Begin to compile a smaller bucket inside of one whose padding took much more time.

        So what is padded in vain takes a bounded part of the time that all calls take.
        """
        finer = self._choice.finer(bounded.choice, values)
        if finer == bounded.choice:  # these values fill it
            return
        bounded.padding_seconds = 0.0
        refined = key._replace(bounds=finer)
        known = self._finer.setdefault(key, [])
        if refined not in known and refined not in self._refused:
            known.insert(0, refined)
            make = functools.partial(self._make, refined)
            self._meanwhile.start(self._variants, refined, make)

    def _look_ahead(self, key: VariantKey, values: Sequence[int]) -> None:
        """Begin to compile the bucket behind one that a size grows out of."""
        following = self._choice.next(_choice(key), values)
        if following is None:
            return
        self._looked_ahead.add(key)
        ahead = self._steady(key._replace(bounds=following), values)
        if ahead not in self._refused and self._variants.find(ahead) is None:
            self._meanwhile.start(self._variants, ahead, functools.partial(self._make, ahead))

    def _new(self, key: VariantKey, values: tuple[int, ...]) -> Call | None:
        """The call for these values of the symbols, while their bucket is not compiled yet."""
        make = functools.partial(self._make, key)
        stand_in = self._meanwhile.call() or self._larger(key, values)
        if stand_in is not None:
            self._meanwhile.start(self._variants, key, make)
            return stand_in
        try:
            return self._variants.compile(key, make).at(_choice(key).values(values))
        except NotBounded:
            return None

    def _larger(self, key: VariantKey, values: Sequence[int]) -> Call | None:
        """The call of the smallest larger bucket that is compiled and right at these values."""
        if self._request.options.while_compiling != "larger":
            return None
        found = [
            bounded
            for other, bounded in self._compiled()
            if other.sizes == key.sizes and bounded.choice.serves(values)
        ]
        if not found:
            return None
        least = min(found, key=lambda bounded: math.prod(b.high for b in bounded.choice.buckets))
        return least.at(least.choice.values(values))

    def _compiled(self) -> list[tuple[VariantKey, BoundedCall]]:
        """The variants for buckets that are compiled."""
        return [(key, call) for key, call in self._variants.items() if key.bounds is not None]

    def _make(self, key: VariantKey) -> BoundedCall:
        """Compile a bucket; what cannot be bounded is told, and not tried again."""
        sizes = self._sizes
        tried: list[Choice] = [_choice(key)]
        if self._request.options.while_compiling == "larger":  # it stands in for smaller ones
            tried.insert(0, _choice(key).down_to_least(sizes))
        for choice in tried:
            names = choice.names(sizes)
            try:
                return self._compile(key._replace(bounds=choice), self._lower(choice), names)
            except NotBounded as refusal:
                if choice is tried[-1]:
                    self._refused.add(key)
                    self._tell(names, str(refusal))
                    raise
        raise AssertionError("one of them was tried last")

    def _lower(self, choice: Choice) -> Callable[[Target], BoundedProgram]:
        """What lowers the graph for these sizes, and raises NotBounded where it cannot."""
        variants, symbols = choice.variants()

        def lower(target: Target) -> BoundedProgram:
            try:
                gm = self._source.gm
                sizes = self._source.sizes.where(choice.extents)
                values = [sizes.fake_values(gm, at) for at in variants]
                return lower_bounded(gm, sizes, symbols, values, target, self._request)
            except NotBounded:
                raise
            # Whatever a rule raises at a size that was not asked for is no error of the user's.
            except Exception as error:
                raise NotBounded(f"at the bounds: {type(error).__name__}: {error}") from error

        return lower


def _choice(key: VariantKey) -> Choice:
    assert key.bounds is not None
    return key.bounds
