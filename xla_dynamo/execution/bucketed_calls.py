"""The calls of a graph with open sizes, by buckets: one executable for all sizes up to a bound."""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from xla_dynamo.calls.calls import Call
from xla_dynamo.execution.bounded_calls import BoundedCall
from xla_dynamo.execution.executable_cache import ExecutableCache
from xla_dynamo.execution.meanwhile import Meanwhile, only_looks
from xla_dynamo.graphs.bucket_choice import BucketChoice, Choice
from xla_dynamo.graphs.open_sizes import NotBounded
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_graph import SourceGraph
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower_bounded import BoundedProgram, lower_bounded

# A choice of sizes, then the numbers that are constants of the program.
Key: TypeAlias = tuple[Any, ...]
# A graph of which so many buckets were refused, and none was compiled, is not tried again.
_TRIALS = 2
# A smaller bucket is worth it when padding took so many times as long as its compilation, which
# takes other calls' cores; and that takes so many seconds, also where the disk cache had the last.
_WORTH, _LEAST = 4, 1.0


class BucketedCalls:
    """The executables of a graph for buckets, `Options.max_executables` of them at most."""

    def __init__(
        self,
        source: SourceGraph,
        request: Request,
        compile: Callable[..., BoundedCall],
        tell: Callable[[Mapping[str, Any], str], None],
        meanwhile: Meanwhile,
    ) -> None:
        """Take a graph whose facts have open sizes.

        `compile` compiles a bounded program, and `tell` is told of refusals. `meanwhile` says what
        calls do while a bucket is compiled in the background.
        """
        assert source.facts.sizes is not None
        self._source, self._sizes = source, source.facts.sizes
        self._request, self._compile, self._tell = request, compile, tell
        self._meanwhile = meanwhile
        self._choice = BucketChoice(self._sizes, request.options.buckets)
        limit = request.options.max_executables
        self._known: ExecutableCache[BoundedCall] = ExecutableCache(limit, expected=(NotBounded,))
        self._refused: set[Key] = set()
        self._finer: dict[Key, list[Key]] = {}
        self._looked_ahead: set[Key] = set()
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
                self._choice.open_all_that_vary()
            choice = self._choice.choose(values)
        if choice is None or (len(self._refused) >= _TRIALS and not self._known.items()):
            return None
        key = (choice, *(repr(a) for a in args if isinstance(a, float | complex)))
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

    def _finest(self, key: Key, values: Sequence[int]) -> BoundedCall | None:
        """The call of a smaller bucket inside, if there is one at these values, else the key's."""
        for finer in self._finer.get(key, ()):
            if finer[0].serves(values) and (bounded := self._known.find(finer)) is not None:
                return bounded
        return self._known.find(key)

    def _steady(self, key: Key, values: Sequence[int]) -> Key:
        """The key of a smaller bucket inside a new one, where sizes are steady; else its own."""
        finer = self._choice.finer(key[0], values, where_steady=True), *key[1:]
        if finer == key or finer in self._refused:
            return key
        known = self._finer.setdefault(key, [])
        if finer not in known:
            known.insert(0, finer)
        return finer

    def _refine(self, key: Key, bounded: BoundedCall, values: Sequence[int]) -> None:
        """Begin to compile a smaller bucket inside of one whose padding took much more time.

        So what is padded in vain takes a bounded part of the time that all calls take.
        """
        finer = self._choice.finer(bounded.choice, values)
        if finer == bounded.choice:  # these values fill it
            return
        bounded.padding_seconds = 0.0
        refined = (finer, *key[1:])
        known = self._finer.setdefault(key, [])
        if refined not in known and refined not in self._refused:
            known.insert(0, refined)
            make = functools.partial(self._make, refined)
            self._meanwhile.start(self._known, refined, make)

    def _look_ahead(self, key: Key, values: Sequence[int]) -> None:
        """Begin to compile the bucket behind one that a size grows out of."""
        following = self._choice.next(key[0], values)
        if following is None:
            return
        self._looked_ahead.add(key)
        ahead = self._steady((following, *key[1:]), values)
        if ahead not in self._refused and self._known.find(ahead) is None:
            self._meanwhile.start(self._known, ahead, functools.partial(self._make, ahead))

    def _new(self, key: Key, values: tuple[int, ...]) -> Call | None:
        """The call for these values of the symbols, while their bucket is not compiled yet."""
        make = functools.partial(self._make, key)
        stand_in = self._meanwhile.call() or self._larger(key, values)
        if stand_in is not None:
            self._meanwhile.start(self._known, key, make)
            return stand_in
        try:
            return self._known.compile(key, make).at(key[0].values(values))
        except NotBounded:
            return None

    def _larger(self, key: Key, values: Sequence[int]) -> Call | None:
        """The call of the smallest larger bucket that is compiled and right at these values."""
        if self._request.options.while_compiling != "larger":
            return None
        found = [
            bounded
            for other, bounded in self._known.items()
            if other[1:] == key[1:] and bounded.choice.serves(values)
        ]
        if not found:
            return None
        least = min(found, key=lambda bounded: math.prod(b.high for b in bounded.choice.buckets))
        return least.at(least.choice.values(values))

    def _make(self, key: Key) -> BoundedCall:
        """Compile a bucket; what cannot be bounded is told, and not tried again."""
        sizes = self._sizes
        tried: list[Choice] = [key[0]]
        if self._request.options.while_compiling == "larger":  # it stands in for smaller ones
            tried.insert(0, key[0].down_to_least(sizes))
        for choice in tried:
            names = choice.names(sizes)
            try:
                return self._compile((choice, *key[1:]), self._lower(choice), names)
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
