"""Bind a program to its executable: the function that runs at every call."""

import collections
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import jax
import torch
from torch.autograd import forward_ad

from xla_dynamo.calls.failures import failure
from xla_dynamo.calls.named_calls import named
from xla_dynamo.calls.steps import Steps
from xla_dynamo.errors import ExecutionError
from xla_dynamo.graphs.output_views import ViewStep
from xla_dynamo.memory.restriding import restrided
from xla_dynamo.programs.program import Effect, Output, Program, Strides
from xla_dynamo.runtime import forks, metrics
from xla_dynamo.runtime.cpu.deferred_signals import after_signals
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.torch_private import in_forward_mode, mark_boxed

Call = Callable[[list[Any]], list[Any]]


class BoxedGraph:
    """A graph that runs.

    Attributes:
        call: runs the graph, in AOTAutograd's boxed convention: takes a list, and empties it.
        chosen_strides: the strides of results, by number, that do not have the traced ones.
        steps: what a call does, for who has buffers already; None where that depends on the sizes
            of the inputs, where torch runs a part of it, and where there is nothing to compute.
        name: what the graph is called (`graphs.subjects`); "" where nobody said.
    """

    def __init__(
        self,
        call: Call,
        chosen_strides: Strides = MappingProxyType({}),
        steps: Steps | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.call, self.chosen_strides, self.steps = call, chosen_strides, steps
        # The mark of the boxed convention goes on the function, since the wrapper that Dynamo puts
        # around a backward graph copies the function's __dict__.
        mark_boxed(self.call)

    def __call__(self, *args: Any) -> list[Any]:
        """Run the graph on its inputs."""
        return self.call(list(args))


def bind(program: Program, steps: Steps | None, placement: Placement, name: str) -> Call:
    """The callable of a program, in AOTAutograd's boxed convention, with a name for profilers.

    It takes the graph's inputs in a list, which it empties so that they can be freed early, and
    returns the graph's outputs. `steps` is None for a program that computes nothing. The callable
    raises ExecutionError when PJRT fails, out of memory say.
    """
    run = _nothing if steps is None else _in_a_row(steps, placement, program)
    mutations, outputs, effects = program.mutations, program.outputs, program.effects
    as_they_come = [o.result for o in outputs if o.view is None] == list(range(len(outputs)))
    if as_they_come and outputs and not mutations and not effects:
        return named(run, name)

    used = [*outputs, *(m.output for m in mutations), *(o for e in effects for o in e.outputs)]
    needed = {m.index for m in mutations} | {o.input for o in used if o.input is not None}
    uses = collections.Counter(o.result for o in used)
    tensors = placement.tensors
    # A tensor without memory of its own takes the value of a result that nobody else gets.
    writes = [
        (m, _copy if tensors is None or uses[m.output.result] != 1 else tensors.put)
        for m in mutations
    ]

    def call(args: list[Any]) -> list[Any]:
        inputs = {index: args[index] for index in needed}
        results = run(args)
        run_effects(effects, results, inputs)
        for mutation, write in writes:
            write(inputs[mutation.index], _value(mutation.output, results, inputs))
        return [_value(output, results, inputs) for output in outputs]

    return named(call, name)


def run_effects(
    effects: Sequence[Effect], results: list[torch.Tensor], inputs: dict[int, Any]
) -> None:
    """Run the operators that act when a program is over, on its results and a call's inputs."""
    for effect in effects:
        given = [_value(a, results, inputs) for a in effect.args]
        named = {k: _value(a, results, inputs) for k, a in effect.kwargs.items()}
        effect.op(*given, **named)


def _copy(tensor: torch.Tensor, new: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(new)


def _nothing(args: list[Any]) -> list[Any]:
    args.clear()
    return []


def _in_a_row(steps: Steps, placement: Placement, program: Program) -> Call:
    """From the graph's inputs to the program's results."""
    supply, execute, export, donated = steps.supply, steps.run, steps.export, steps.donated
    stream_of = placement.stream if placement.has_streams else None

    def run(args: list[Any]) -> list[torch.Tensor]:
        if forks.forked:
            raise ExecutionError(forks.MESSAGE)
        if in_forward_mode():
            _refuse_tangents(args)
        stream = stream_of() if stream_of is not None else None
        changing = [args[index] for index in donated] if donated else []
        buffers = supply(args, stream)
        args.clear()
        return finish(buffers, changing, stream)

    def finish(buffers: Any, changing: Any, stream: int | None) -> list[torch.Tensor]:
        try:
            results = execute(buffers)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise failure(error, program) from error
        return export(results, changing, stream)

    if placement.tensors is None:
        return run
    supply = metrics.timing("RunCachedGraphInputData", supply)
    execute = metrics.timing("ExecuteTime", execute)
    export = metrics.timing("RunCachedGraphOutputData", export)
    in_use = placement.tensors.in_use
    # An interruption would lose tensors whose memory the program took for their new values.
    finish = after_signals(finish)

    def run_alone(args: list[Any]) -> list[torch.Tensor]:
        with in_use:
            return run(args)

    return run_alone


def _value(output: Output, results: list[torch.Tensor], inputs: dict[int, Any]) -> Any:
    if output.result is not None:
        base = results[output.result]
        return base if output.view is None else restrided(base, *output.view)
    if output.input is not None:
        tensor = inputs[output.input]
        return replayed(tensor, output.replay, output.as_view) if output.replay else tensor
    return output.number


def replayed(tensor: torch.Tensor, steps: Sequence[ViewStep], as_view: bool) -> Any:
    """A view of a tensor; unless `as_view`, it is none for autograd, so it may change in place."""
    value: Any = tensor
    with torch.no_grad():
        for step in steps:
            value = step.op(value, *step.args, **step.kwargs)
    return value if as_view else value.detach()


def _refuse_tangents(args: list[Any]) -> None:
    """Refuse forward-mode tangents: no compiled graph carries them, and they must not be lost."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and forward_ad.unpack_dual(arg).tangent is not None:
            raise ExecutionError(
                "a compiled graph was called with a dual tensor: forward-mode derivatives do not "
                "pass through it; use torch.func.jvp inside the compiled function"
            )
