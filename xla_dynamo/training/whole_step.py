"""The whole training step, compiled, in place of the graph of its forward.

Dynamo hands over the forward and guards what it depends on. A step is traced at its first call,
because only then are the parameters and the optimizer's state there. It is traced again when these,
or the hyperparameters that are its constants, have changed.
"""

import operator
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from xla_dynamo.backend import compile_torch_graph
from xla_dynamo.calls.named_calls import compiling
from xla_dynamo.dynamo.marks_in_place import read_marked_values
from xla_dynamo.dynamo.recurrent_layers import prepare_recurrent_layers
from xla_dynamo.errors import UnsupportedError
from xla_dynamo.events import Frame
from xla_dynamo.graphs.sizes import geometry, has_symbols, size_key
from xla_dynamo.graphs.source_lines import SourceLine, last_line
from xla_dynamo.options import Options
from xla_dynamo.runtime import marks
from xla_dynamo.torch_private import DataDependentOutputException, compile_lock
from xla_dynamo.torch_threads import tracing_here
from xla_dynamo.training.hyperparameters import hyperparameters
from xla_dynamo.training.optimizer_trace import initialise_state
from xla_dynamo.training.sharded_state import mark_state
from xla_dynamo.training.step_inputs import (
    StepSettings,
    allocate_gradients,
    constants,
    step_parameters,
    tensors_beside,
)
from xla_dynamo.training.step_trace import StepTrace, index_of_loss

Tensor: TypeAlias = torch.Tensor


class CompiledStep:
    """A step compiled for what the model and the optimizer were when it was traced."""

    def __init__(
        self, forward: torch.fx.GraphModule, settings: StepSettings, args: Sequence[Any]
    ) -> None:
        """Trace and compile the step that `forward` is part of, for these inputs."""
        self._settings = settings
        params = step_parameters(settings, args)
        self._params, self._input_numbers = list(params), list(params.values())
        beside = tensors_beside(settings, params, args)
        self._keys, self._geometry = list(beside), list(map(geometry, beside.values()))
        self._seen: list[Tensor] = []
        trace = StepTrace(forward, args, params, beside, settings)
        self._numbers, self._guards, self._created = trace.numbers, trace.guards, trace.created
        self.without_gradient = trace.without_gradient
        self.constants = constants(settings)
        self._values: list[float] = []
        self._vector = torch.empty(0, dtype=torch.float64)
        self._outputs = len(forward.graph.output_node().args[0])  # type: ignore[arg-type]
        fakes = [f.detach() if torch.is_tensor(f) else f for f in trace.fakes]
        start = time.perf_counter()
        with torch.no_grad():
            self._call = compile_torch_graph(
                trace.gm,
                fakes,
                Options.parse(settings.options),
                kind="training step",
                trains=True,
                of_host=[len(fakes) - 1],  # the hyperparameters
                observer=settings.observer,
            )
        self.compile_seconds = time.perf_counter() - start

    def inputs(self, args: Sequence[Any]) -> list[Any] | str:
        """What to run it with; or why it is not for the present state of things."""
        settings = self._settings
        params = step_parameters(settings, args)
        if list(params.values()) != self._input_numbers or not all(
            map(operator.is_, params, self._params)
        ):
            return "it acts on other parameters"
        now = hyperparameters(settings.optimizer)
        fixed = constants(settings)
        for n in self._numbers:
            if n not in now:
                return f"{n[1]!r} of parameter group {n[0]} is not a number now"
        for n, v in self.constants.items():
            if n not in fixed or fixed[n] != v:
                return f"{n!r} is {fixed.get(n)!r}, not {v!r}"
        for n, test, outcome in self._guards:
            if test(now[n]) is not outcome:
                return f"{n[1]!r} of parameter group {n[0]} is {now[n]!r}, on which it decides"
        beside = tensors_beside(settings, params, args)
        tensors = list(beside.values())
        if list(beside) != self._keys:
            return "the optimizer, the scaler or the average has other tensors"
        if len(tensors) != len(self._seen) or not all(map(operator.is_, tensors, self._seen)):
            if list(map(geometry, tensors)) != self._geometry:
                return "a tensor of its state has another shape, dtype, device or strides"
            if not settings.accumulates:  # gradients must not outlive the update
                self._seen = tensors
        values = [float(now[n]) for n in self._numbers]
        if values != self._values or not values:
            self._values, self._vector = values, torch.tensor(values, dtype=torch.float64)
        return [*args, *tensors, self._vector]

    def run(self, inputs: list[Any]) -> list[Any]:
        """Run it; returns the outputs of the forward."""
        with torch.no_grad():
            results = list(self._call(*inputs))
        state = self._settings.optimizer.state
        for (index, name), tensor in zip(self._created, results[self._outputs :], strict=True):
            state[self._params[index]][name] = tensor
        if self._settings.updates and self._settings.accumulates:
            for p in self._params:
                p.grad = None
        return results[: self._outputs]


class WholeStep:
    """A backend's answer to a forward graph: the steps that it has become part of."""

    def __init__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], settings: StepSettings
    ) -> None:
        """Take Dynamo's graph and what makes a step of it."""
        self._gm, self._settings = gm, settings
        self._limit = Options.parse(settings.options).max_executables
        self._dynamic = [i for i, value in enumerate(example_inputs) if has_symbols(value)]
        # By sizes and by whether the optimizer acts; the latest last.
        self._steps: list[tuple[Any, CompiledStep]] = []
        self._new: set[Tensor] = set()
        self._idle: set[Tensor] = set()

    def __call__(self, *args: Any) -> list[Any]:
        """Run the step on the inputs of the forward graph, and return that graph's outputs.

        One thread at a time: `TrainStep` sees to it.
        """
        if not self._steps:
            index_of_loss(self._gm)
            # Before the trace decomposes recurrent layers, which loses their dropout.
            prepare_recurrent_layers(self._gm)
            read_marked_values(self._gm)
        self._settings.ran = True
        key = (self._settings.updates, *size_key([args[i] for i in self._dynamic]))
        if self._settings.accumulates:
            allocate_gradients(self._used(args))
        found = self._fitting(key, args)
        if isinstance(found, str):
            self._prepare(args)
            found = self._fitting(key, args)
        if isinstance(found, str):
            self._add(key, args, why=found)
            found = self._fitting(key, args)
        assert not isinstance(found, str), found
        if marks.are_there():
            mark_state(self._settings.optimizer)
        step, inputs = found
        return step.run(inputs)

    def _fitting(self, key: Any, args: Sequence[Any]) -> tuple[CompiledStep, list[Any]] | str:
        """The step for these inputs and the present state, and its inputs; or why there is none."""
        why = ""
        for index in reversed(range(len(self._steps))):
            known, step = self._steps[index]
            if known == key:
                inputs = step.inputs(args)
                if not isinstance(inputs, str):
                    self._steps.append(self._steps.pop(index))
                    return step, inputs
                why = why or inputs
        return why or "it has other sizes, or adds up gradients where others update"

    @compiling()
    def _add(self, key: Any, args: Sequence[Any], why: str) -> None:
        """Compile a step more, in the place of the one that was used least recently."""
        start = time.perf_counter()
        failed: dict[str | None, str] = {None: why} if self._steps else {}
        # Tracing changes what all threads see: torch.fx replaces `nn.Module.__call__`, say.
        with compile_lock, tracing_here():
            step = self._compile(args)
        self._steps.append((key, step))
        del self._steps[: -self._limit]
        seconds = time.perf_counter() - start
        line = last_line(self._gm) or SourceLine("?", 0, "?", "")
        self._settings.observer(Frame(None, line, failed, seconds, step.compile_seconds))

    def _used(self, args: Sequence[Any]) -> list[Tensor]:
        params = step_parameters(self._settings, args).items()
        return [p for p, number in params if number is not None and p not in self._idle]

    def _prepare(self, args: Sequence[Any]) -> None:
        """Make the state that the step will change, where there is none."""
        self._new = set()
        if self._settings.updates:
            self._new.update(initialise_state(self._settings.optimizer, self._used(args)))

    def _compile(self, args: Sequence[Any]) -> CompiledStep:
        """Trace with the hyperparameters that vary as inputs, or as constants if need be."""
        settings, now = self._settings, hyperparameters(self._settings.optimizer)
        varying = settings.varying & now.keys()
        old = [(n, v) for _, step in self._steps for n, v in step.constants.items() if n in now]
        changed = {n for n, v in old if _is_number(v) and _is_number(now[n]) and now[n] != v}
        failure: Any = None
        for settings.varying in (varying | changed, varying, set()):
            try:
                step = CompiledStep(self._gm, settings, args)
            except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
                failure = error
                continue
            idle = set(step.without_gradient) - self._idle
            if not idle:
                return step
            # Eager gives neither state nor a gradient to parameters that the loss does not use.
            self._idle |= idle
            for p in idle:
                p.grad = None
                if p in self._new:
                    settings.optimizer.state.pop(p, None)
            return CompiledStep(self._gm, settings, args)
        raise UnsupportedError(
            f"train_step cannot trace {type(settings.optimizer).__name__}.step(), clip_gradients "
            "or the loss function: one of them decides on the value of a tensor, or makes a Python "
            "number of it. Keep it a tensor, or call loss.backward() and optimizer.step() in eager "
            "on a model compiled with torch.compile(model, backend='openxla')"
        ) from failure


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
