"""What stands in the place of a forward graph: the whole training step, compiled.

Dynamo hands over the forward and guards what it depends on. A step is traced when it is first
called, since the parameters and the optimizer's state are at hand only then; it is traced anew when
they, or the hyperparameters that it has as constants, are no longer what they were.
"""

import operator
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from xla_dynamo.backend import openxla
from xla_dynamo.errors import UnsupportedError
from xla_dynamo.hyperparameters import hyperparameters
from xla_dynamo.optimizer_trace import initialise_state
from xla_dynamo.options import Options
from xla_dynamo.sizes import has_symbols, size_key
from xla_dynamo.step_inputs import (
    Recipe,
    allocate_gradients,
    owned_parameters,
    tensors_beside,
    used_parameters,
)
from xla_dynamo.step_trace import StepTrace

Tensor: TypeAlias = torch.Tensor


class CompiledStep:
    """A step compiled for what the model and the optimizer were when it was traced."""

    def __init__(self, forward: torch.fx.GraphModule, recipe: Recipe, args: Sequence[Any]) -> None:
        """Trace and compile the step that `forward` is part of, for these inputs."""
        self._recipe = recipe
        params = used_parameters(recipe, args)
        self._params, self._places = list(params), list(params.values())
        self._owned = owned_parameters(recipe.optimizer)
        beside = tensors_beside(recipe, self._params, args)
        self._keys, self._geometry = list(beside), list(map(_geometry, beside.values()))
        self._seen = list(beside.values())
        trace = StepTrace(forward, args, params, beside, recipe)
        self._numbers, self._guards, self._created = trace.numbers, trace.guards, trace.created
        self.without_gradient = trace.without_gradient
        now = hyperparameters(recipe.optimizer)
        self.constants = {
            n: v for n, v in now.items() if n not in self._numbers and not torch.is_tensor(v)
        }
        self._values: list[float] = []
        self._vector = torch.empty(0, dtype=torch.float64)
        self._outputs = len(forward.graph.output_node().args[0])  # type: ignore[arg-type]
        fakes = [f.detach() if torch.is_tensor(f) else f for f in trace.fakes]
        with torch.no_grad():
            self._call = openxla(trace.gm, fakes, options=dict(recipe.options or {}))

    def inputs(self, args: Sequence[Any]) -> list[Any] | None:
        """What to run it with; None if it is not for the present state of things."""
        recipe, params = self._recipe, self._params
        owned = owned_parameters(recipe.optimizer)
        if len(owned) != len(self._owned) or not all(map(operator.is_, owned, self._owned)):
            return None
        if not all(args[i] is p for i, p in zip(self._places, params, strict=True)):
            return None
        now = hyperparameters(recipe.optimizer)
        if any(n not in now or now[n] != v for n, v in self.constants.items()):
            return None
        if any(test(now[n]) is not outcome for n, test, outcome in self._guards):
            return None
        beside = tensors_beside(recipe, params, args)
        tensors = list(beside.values())
        if list(beside) != self._keys:
            return None
        if any(a is not b for a, b in zip(tensors, self._seen, strict=True)):
            if list(map(_geometry, tensors)) != self._geometry:
                return None
            self._seen = tensors
        values = [float(now[n]) for n in self._numbers]
        if values != self._values or not values:
            self._values, self._vector = values, torch.tensor(values, dtype=torch.float64)
        return [*args, *tensors, self._vector]

    def run(self, inputs: list[Any]) -> list[Any]:
        """Run it; returns the outputs of the forward."""
        with torch.no_grad():
            results = list(self._call(*inputs))
        state = self._recipe.optimizer.state
        for (index, name), tensor in zip(self._created, results[self._outputs :], strict=True):
            state[self._params[index]][name] = tensor
        return results[: self._outputs]


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class WholeStep:
    """A backend's answer to a forward graph: the steps that it has become part of."""

    def __init__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], recipe: Recipe
    ) -> None:
        """Take Dynamo's graph and what makes a step of it."""
        self._gm, self._recipe = gm, recipe
        self._limit = Options.parse(recipe.options).max_executables
        self._open = [i for i, value in enumerate(example_inputs) if has_symbols(value)]
        self._lock = threading.Lock()
        self._steps: OrderedDict[Any, list[CompiledStep]] = OrderedDict()
        self._new: set[Tensor] = set()
        self._idle: set[Tensor] = set()

    def __call__(self, *args: Any) -> list[Any]:
        """Run the step on the inputs of the forward graph, and return that graph's outputs."""
        key = (self._recipe.updates, *size_key([args[i] for i in self._open]))
        with self._lock:
            steps = self._steps.setdefault(key, [])
            step, inputs = self._fitting(steps, args)
            if step is None:
                self._prepare(args)
                step, inputs = self._fitting(steps, args)
            if step is None:
                step = self._compile(steps, args)
                steps.append(step)
                inputs = step.inputs(args)
            assert inputs is not None
            return step.run(inputs)

    def _fitting(
        self, steps: list[CompiledStep], args: Sequence[Any]
    ) -> tuple[CompiledStep | None, list[Any] | None]:
        for step in steps:
            if (inputs := step.inputs(args)) is not None:
                return step, inputs
        return None, None

    def _prepare(self, args: Sequence[Any]) -> None:
        """Make the state and the gradients that the step will change, where there are none."""
        params = [p for p in used_parameters(self._recipe, args) if p not in self._idle]
        self._new = set(initialise_state(self._recipe.optimizer, params))
        if self._recipe.accumulates:
            self._new |= {p for p in params if p.grad is None}
            allocate_gradients(params)

    def _compile(self, steps: list[CompiledStep], args: Sequence[Any]) -> CompiledStep:
        """Trace with the hyperparameters that vary as inputs, or as constants if need be."""
        recipe, now = self._recipe, hyperparameters(self._recipe.optimizer)
        varying = recipe.varying & now.keys()
        changed = {n for step in steps for n, v in step.constants.items() if now.get(n) != v}
        changed = {n for n in changed if isinstance(now.get(n), float)}
        failure = None
        for recipe.varying in (varying | changed, varying, set()):
            try:
                step = CompiledStep(self._gm, recipe, args)
            except DataDependentOutputException as error:
                failure = error
                continue
            idle = self._new.intersection(step.without_gradient)
            if not idle:
                return step
            # Eager gives no state to parameters without a gradient.
            self._idle |= idle
            for p in idle:
                recipe.optimizer.state.pop(p, None)
                p.grad = None
            return CompiledStep(self._gm, recipe, args)
        name = type(recipe.optimizer).__name__
        raise UnsupportedError(
            f"train_step cannot trace {name}.step(), or clip_gradients: it takes a number out of a "
            f"tensor ({failure.func if failure else ''}); call it in eager, after loss.backward() "
            "through torch.compile(model, backend='openxla')"
        ) from failure
