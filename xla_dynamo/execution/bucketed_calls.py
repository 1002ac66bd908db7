"""The calls of a graph with open sizes, by buckets: one executable for all sizes up to a bound."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.execution.bounded_calls import BoundedCall
from xla_dynamo.execution.calls import Call
from xla_dynamo.graphs.bucket_choice import BucketChoice, Choice
from xla_dynamo.graphs.open_sizes import NotBounded, OpenSizes
from xla_dynamo.graphs.request import Request
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower_bounded import BoundedProgram, lower_bounded

Compile: TypeAlias = Callable[[Callable[[Target], BoundedProgram], Mapping[str, Any]], BoundedCall]


class BucketedCalls:
    """The executables of a graph for buckets, `Options.max_executables` of them at most."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        request: Request,
        device: torch.device,
        compile: Callable[..., BoundedCall],
        tell: Callable[[Mapping[str, Any], str], None],
    ) -> None:
        """Take the graph, what compiles a bounded program, and what is told of refusals."""
        self._gm, self._request, self._compile, self._tell = gm, request, compile, tell
        self._known: collections.OrderedDict[Any, BoundedCall] = collections.OrderedDict()
        self._refused: set[Any] = set()
        self._sizes: OpenSizes | None = None
        try:
            if device.type != "cpu" or request.placement is not None:
                raise NotBounded("buckets are for the tensors of the CPU")
            self._sizes = OpenSizes(gm)
            self._choice = BucketChoice(self._sizes, request.options.buckets)
        except NotBounded as refusal:
            tell({}, str(refusal))

    def find(self, args: Sequence[Any]) -> Call | None:
        """The call of the bucket that these inputs are in; None if there is none for them."""
        if self._sizes is None or (values := self._sizes.values(args)) is None:
            return None
        choice = self._choice.choose(values)
        if choice is None:
            return None
        key = (choice, *(repr(a) for a in args if isinstance(a, float | complex)))
        if key in self._refused:
            return None
        bounded = self._known.get(key)
        if bounded is None:
            names = choice.names(self._sizes)
            try:
                bounded = self._known[key] = self._compile(self._lower(choice), names)
            except NotBounded as refusal:
                self._refused.add(key)
                self._tell(names, str(refusal))
                return None
            if len(self._known) > self._request.options.max_executables:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return bounded.at(choice.values(values))

    def _lower(self, choice: Choice) -> Callable[[Target], BoundedProgram]:
        """What lowers the graph for these sizes, and raises NotBounded where it cannot."""
        assert self._sizes is not None
        sizes = self._sizes.where(choice.extents)
        variants, symbols = choice.variants()

        def lower(target: Target) -> BoundedProgram:
            try:
                values = [sizes.fake_values(self._gm, at) for at in variants]
                return lower_bounded(self._gm, sizes, symbols, values, target, self._request)
            except NotBounded:
                raise
            # Whatever a rule raises at a size that was not asked for is no error of the user's.
            except Exception as error:
                raise NotBounded(f"at the bounds: {type(error).__name__}: {error}") from error

        return lower
