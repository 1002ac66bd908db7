"""Forward, backward and optimizer as one ATen graph.

What is traced is plain PyTorch code around Dynamo's graph of the forward.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import preserve_node_meta

from xla_dynamo.errors import UnsupportedError, UnsupportedTensor
from xla_dynamo.hyperparameters import Name, NumbersAsTensors, hyperparameters
from xla_dynamo.loss_scaling import adapt_scale, keep_where, unscale
from xla_dynamo.optimizer_trace import Place, trace_optimizer
from xla_dynamo.step_inputs import Key, Recipe
from xla_dynamo.weight_averaging import average_weights, averaged_tensors

Tensor: TypeAlias = torch.Tensor


@torch._dynamo.allow_in_graph
def the_loss(loss: Tensor) -> Tensor:
    """Mark what the gradients are of."""
    return loss.clone()


class StepTrace:
    """A step as a graph.

    Attributes:
        gm: its graph. Its inputs are those of the forward, the tensors beside them, and the numbers
            among the hyperparameters (one f64 tensor); its outputs are those of the forward and the
            tensors at `created`.
        fakes: fake tensors for its inputs.
        created: where in the optimizer's state new tensors belong.
        guards: see `NumbersAsTensors`.
        without_gradient: the parameters that the loss does not depend on, by position.
    """

    def __init__(
        self,
        forward: torch.fx.GraphModule,
        args: Sequence[Any],
        params: Mapping[Tensor, int],
        beside: Mapping[Key, Tensor],
        recipe: Recipe,
    ) -> None:
        """Trace Dynamo's graph of the forward, called with `args`, and what the recipe adds."""
        self._forward, self._recipe, self._params = forward, recipe, params
        self._keys, self._count = list(beside), len(args)
        self._args = args
        self._hyperparameters = hyperparameters(recipe.optimizer)
        self.numbers = [n for n in self._hyperparameters if n in recipe.varying]
        outputs: Any = forward.graph.output_node().args[0]
        self._loss = next(i for i, node in enumerate(outputs) if node.target is the_loss)
        self.created: list[Place] = []
        self.guards: list[tuple[Name, Callable[[Any], bool], bool]] = []
        self.without_gradient: list[Tensor] = []
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        vector = torch.empty(len(self.numbers), dtype=torch.float64)
        self.fakes = [
            mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a
            for a in (*args, *beside.values(), vector)
        ]
        with mode, preserve_node_meta():
            self.gm = make_fx(self._step)(*self.fakes)

    def _step(self, *flat: Any) -> list[Any]:
        args, rest, vector = flat[: self._count], flat[self._count : -1], flat[-1]
        beside = dict(zip(self._keys, rest, strict=True))
        params = [args[place] for place in self._params.values()]
        with torch.enable_grad():
            outputs = torch.fx.Interpreter(self._forward).run(*args)
        device = outputs[self._loss].device.type
        with torch.autocast(device, enabled=False):
            grads = self._gradients(outputs[self._loss], params, beside.get(("scale",)))
            with torch.no_grad():
                created = self._update(args, params, grads, beside, vector)
        return [o.detach() if isinstance(o, torch.Tensor) else o for o in outputs] + created

    def _gradients(
        self, loss: Tensor, params: list[Tensor], scale: Tensor | None
    ) -> list[Tensor | None]:
        _check_loss(loss)
        with torch.enable_grad():
            if scale is not None:
                loss = loss * scale
            if self._recipe.accumulates:
                loss = loss / self._recipe.accumulation_steps
            grads = torch.autograd.grad(loss, params, allow_unused=True)
        self.without_gradient = [
            real for real, grad in zip(self._params, grads, strict=True) if grad is None
        ]
        for grad in grads:
            if grad is not None and grad.layout is not torch.strided:
                raise UnsupportedTensor(
                    f"train_step got a gradient of layout {grad.layout}; make it dense "
                    "(nn.Embedding(sparse=False))"
                )
        return list(grads)

    def _update(
        self,
        args: Sequence[Any],
        params: list[Tensor],
        grads: list[Tensor | None],
        beside: Mapping[Key, Tensor],
        vector: Tensor,
    ) -> list[Tensor]:
        """Everything after the backward; returns the new tensors of the optimizer's state."""
        recipe = self._recipe
        for index, grad in enumerate(grads):
            total = beside.get(("gradient", index))
            if grad is not None and total is not None:
                grads[index] = total.add_(grad)
        if not recipe.updates:
            return []
        state = {key[1:]: t for key, t in beside.items() if key[0] == "state"}
        overflow, before = None, []
        changing = [*params, *state.values()]
        if ("scale",) in beside:
            overflow = unscale(grads, beside["scale",])
            before = [t.clone() for t in changing]
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        with_gradient = [p for p in params if p.grad is not None]
        if recipe.clip_gradients is not None and with_gradient:
            recipe.clip_gradients(with_gradient)
        created = self._optimize(params, state, beside, vector)
        for p in params:
            p.grad = None
        if overflow is not None:
            if created:
                raise UnsupportedError(
                    f"{type(recipe.optimizer).__name__} makes state in its first step, which a "
                    "gradient scaler may skip: run one step in eager first"
                )
            keep_where(overflow, changing, before)
            adapt_scale(recipe.grad_scaler, beside["scale",], beside["growth",], overflow)
        if recipe.average is not None:
            self._average(args, beside)
        for key, total in beside.items():
            if key[0] == "gradient":
                total.zero_()
        return created

    def _optimize(
        self,
        params: list[Tensor],
        state: Mapping[Place, Tensor],
        beside: Mapping[Key, Tensor],
        vector: Tensor,
    ) -> list[Tensor]:
        numbers = dict(zip(self.numbers, vector.unbind(), strict=True))
        tensors = {key[1]: t for key, t in beside.items() if key[0] == "hyperparameter"}
        mode = NumbersAsTensors(numbers, self._hyperparameters)
        traced = dict(zip(self._params, params, strict=True))
        created = trace_optimizer(self._recipe.optimizer, traced, state, numbers | tensors, mode)
        self.created, self.guards = list(created), mode.guards
        return list(created.values())

    def _average(self, args: Sequence[Any], beside: Mapping[Key, Tensor]) -> None:
        average = self._recipe.average
        assert average is not None
        traced = {id(real): fake for real, fake in zip(self._args, args, strict=True)}
        pairs = averaged_tensors(average, self._recipe.model)
        parameters = len(list(average.module.parameters()))
        average_weights(
            average,
            [beside["average", j] for j in range(len(pairs))],
            [
                beside["weight", j] if ("weight", j) in beside else traced[id(w)]
                for j, (_, w) in enumerate(pairs)
            ],
            [j >= parameters and not average.use_buffers for j in range(len(pairs))],
            beside["averages",],
        )


def _check_loss(loss: Tensor) -> None:
    if loss.numel() != 1 or loss.ndim or not loss.dtype.is_floating_point:
        raise UnsupportedError(
            f"loss_fn must return a floating-point scalar, not {tuple(loss.shape)} of {loss.dtype}"
        )
    if not loss.requires_grad:
        raise UnsupportedError(
            "the loss of train_step does not depend on a parameter that requires a gradient"
        )
