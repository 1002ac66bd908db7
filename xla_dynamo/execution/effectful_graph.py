"""A graph whose effects, which `calls.effects` took out of it, come behind its call."""

from collections.abc import Sequence
from typing import Any

from xla_dynamo.calls.calls import BoxedGraph, Call, run_effects
from xla_dynamo.programs.program import Effect
from xla_dynamo.variants.meanwhile import is_ahead, nobody_reads_the_last


class EffectfulGraph(BoxedGraph):
    """A graph as it was, by the one that `take_effects` left.

    Attributes:
        pure: the graph that was left.
        effects: what was taken out of it.
    """

    def __init__(self, pure: BoxedGraph, effects: Sequence[Effect]) -> None:
        """Take what `take_effects` left, compiled, and what it gave."""
        super().__init__(_with_effects_behind(pure.call, effects), pure.chosen_strides)
        self.pure, self.effects = pure, tuple(effects)


def _with_effects_behind(call: Call, effects: Sequence[Effect]) -> Call:
    given = [output for effect in effects for output in effect.outputs]
    needed = {output.input for output in given if output.input is not None}
    added = len({output.result for output in given if output.result is not None})

    def run(args: list[Any]) -> list[Any]:
        if is_ahead():  # nothing is computed, and nothing may change
            with nobody_reads_the_last(added):
                results = call(args)
        else:
            inputs = {index: args[index] for index in needed}
            results = call(args)
            run_effects(effects, results, inputs)
        del results[len(results) - added :]
        return results

    return run
