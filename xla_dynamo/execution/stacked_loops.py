"""Run a `while_loop` that stacks the results of every step, which its gradient needs.

The number of steps is not known before the loop runs, and XLA's sizes are fixed. So one program
runs the loop and counts its steps. A second one, compiled for that number, runs it again and stacks
the results.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.calls.calls import Call
from xla_dynamo.decompositions.tracing import traced
from xla_dynamo.graphs.nodes import bodies
from xla_dynamo.graphs.sizes import geometry
from xla_dynamo.torch_private import FakeTensorMode, scan_op, while_loop_op

CompileLoop: TypeAlias = Callable[[torch.fx.GraphModule], Call]


class StackedLoop:
    """Runs a `while_loop_stack_output` in two programs.

    Called like that operator, it returns what that does: for each carried tensor its values after
    each step, stacked; the first values where there is no step.
    """

    def __init__(
        self, node: torch.fx.Node, compile_loop: CompileLoop, max_executables: int
    ) -> None:
        self._condition, self._body = bodies(node)
        self._compile_loop = compile_loop
        self._counter = functools.lru_cache(max_executables)(self._compile_counter)
        self._keeper = functools.lru_cache(max_executables)(self._compile_keeper)

    def __call__(
        self, _condition: Any, _body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
    ) -> tuple[torch.Tensor, ...]:
        """Run the loop."""
        given = [*carried, *additional]
        key = (len(carried), *(geometry(x) if torch.is_tensor(x) else x for x in given))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        steps = int(self._counter(key)(list(tensors))[0])
        if not steps:
            return tuple(x.unsqueeze(0).clone() for x in carried)
        return tuple(self._keeper(key, steps)(list(tensors)))

    def _compile_counter(self, key: tuple[Any, ...]) -> Call:
        count, *forms = key

        def counted(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = _filled(forms, tensors)

            def condition(step: torch.Tensor, *rest: Any) -> Any:
                return _single(self._condition(*rest))

            def body(step: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
                return (step + 1, *self._body(*rest))

            start = torch.zeros((), dtype=torch.int64, device=given[0].device)
            carried = (start, *given[:count])
            return [while_loop_op(condition, body, carried, tuple(given[count:]))[0]]

        return self._compile_loop(traced(counted, _fakes(forms)))

    def _compile_keeper(self, key: tuple[Any, ...], steps: int) -> Call:
        count, *forms = key

        def kept(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = _filled(forms, tensors)

            def step(*values: Any) -> list[Any]:
                state, rest = values[:count], values[count + 1 :]  # between them, the number
                after = self._body(*state, *rest)
                return [*after, *(x.clone() for x in after)]

            numbers = torch.arange(steps, device=given[0].device)
            return scan_op(step, given[:count], [numbers], tuple(given[count:]))[count:]

        return self._compile_loop(traced(kept, _fakes(forms)))


def _single(outcome: Any) -> Any:
    return outcome[0] if isinstance(outcome, tuple | list) else outcome


def _fakes(forms: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors without contents of the geometries that are of tensors."""
    with FakeTensorMode():
        return [
            torch.empty_strided(g[0], g[1], dtype=g[2], device=g[3])
            for g in forms
            if isinstance(g, tuple)
        ]


def _filled(forms: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The tensors, and the numbers between them."""
    given = iter(tensors)
    return [next(given) if isinstance(g, tuple) else g for g in forms]
