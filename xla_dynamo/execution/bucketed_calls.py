"""The calls of a graph with open sizes, by buckets: one executable for all sizes up to a bound."""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.execution.bounded_calls import BoundedCall
from xla_dynamo.execution.calls import Call
from xla_dynamo.execution.executable_cache import ExecutableCache
from xla_dynamo.execution.meanwhile import Meanwhile, only_looks
from xla_dynamo.graphs.bucket_choice import BucketChoice, Choice
from xla_dynamo.graphs.open_sizes import NotBounded, OpenSizes
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import has_symbols
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.target import Target
from xla_dynamo.options import Options
from xla_dynamo.programs.lower_bounded import BoundedProgram, lower_bounded
from xla_dynamo.runtime.libraries import libraries_of

aten = torch.ops.aten
# A choice of sizes, then the numbers that are constants of the program.
Key: TypeAlias = tuple[Any, ...]
# A graph of which so many buckets were refused, and none was compiled, is not tried again.
_TRIALS = 2


class BucketedCalls:
    """The executables of a graph for buckets, `Options.max_executables` of them at most."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        request: Request,
        device: torch.device,
        compile: Callable[..., BoundedCall],
        tell: Callable[[Mapping[str, Any], str], None],
        meanwhile: Meanwhile,
    ) -> None:
        """Take the graph, what compiles a bounded program, and what is told of refusals.

        `meanwhile` says what calls do while a bucket is compiled in the background.
        """
        self._gm, self._request, self._compile, self._tell = gm, request, compile, tell
        self._meanwhile = meanwhile
        limit = request.options.max_executables
        self._known: ExecutableCache[BoundedCall] = ExecutableCache(limit, expected=(NotBounded,))
        self._refused: set[Any] = set()
        self._choosing = threading.Lock()
        self._sizes: OpenSizes | None = None
        try:
            if device.type != "cpu" or request.placement is not None:
                raise NotBounded("buckets are for the tensors of the CPU")
            sizes = OpenSizes(gm)
            if request.options.buckets == "auto":
                _refuse_slow(gm, request.options)
            self._choice = BucketChoice(sizes, request.options.buckets)
            self._sizes = sizes
        except NotBounded as refusal:
            tell({}, str(refusal))

    def find(self, args: Sequence[Any]) -> Call | None:
        """The call of the bucket that these inputs are in; None if there is none for them.

        A bucket that is not compiled yet is compiled by this call or in the background, as
        `Options.while_compiling` says.
        """
        if self._sizes is None or (values := self._sizes.values(args)) is None:
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
        bounded = self._known.find(key)
        if bounded is not None:
            return self._meanwhile.ahead() or bounded.at(choice.values(values))
        return self._new(key, values)

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
        assert sizes is not None
        tried: list[Choice] = [key[0]]
        if self._request.options.while_compiling == "larger":  # it stands in for smaller ones
            tried.insert(0, key[0].down_to_least(sizes))
        for choice in tried:
            names = choice.names(sizes)
            try:
                return self._compile(choice, self._lower(choice), names)
            except NotBounded as refusal:
                if choice is tried[-1]:
                    self._refused.add(key)
                    self._tell(names, str(refusal))
                    raise
        raise AssertionError("one of them was tried last")

    def _lower(self, choice: Choice) -> Callable[[Target], BoundedProgram]:
        """What lowers the graph for these sizes, and raises NotBounded where it cannot."""
        all_sizes = self._sizes
        assert all_sizes is not None
        variants, symbols = choice.variants()

        def lower(target: Target) -> BoundedProgram:
            try:
                sizes = all_sizes.where(choice.extents)
                values = [sizes.fake_values(self._gm, at) for at in variants]
                return lower_bounded(self._gm, sizes, symbols, values, target, self._request)
            except NotBounded:
                raise
            # Whatever a rule raises at a size that was not asked for is no error of the user's.
            except Exception as error:
                raise NotBounded(f"at the bounds: {type(error).__name__}: {error}") from error

        return lower


def _refuse_slow(gm: torch.fx.GraphModule, options: Options) -> None:
    """Raise NotBounded if a graph is much faster at sizes that are known.

    Bounded programs call no libraries. XLA's own convolutions on the CPU take several times as long
    as oneDNN's, so a program for each size pays after few calls.
    """
    if "onednn" not in options.libraries or "onednn" not in libraries_of("cpu"):
        return
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        if has_symbols(node.meta.get("val")):
            raise NotBounded(f"convolutions by oneDNN are for sizes that are known{describe(node)}")
