"""Trace forward, backward and optimizer into one ATen graph.

The traced function is plain PyTorch code around Dynamo's graph of the forward.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import preserve_node_meta

from xla_dynamo.dynamo.eager_run import users_function
from xla_dynamo.errors import UnsupportedError, UnsupportedTensor
from xla_dynamo.graphs.node_notes import BACKWARD, phase
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.torch_patches import tracing
from xla_dynamo.torch_private import (
    FakeTensorMode,
    OpOverload,
    allow_in_graph,
    schema,
    storage_id,
)
from xla_dynamo.training.hyperparameters import Name, NumbersAsTensors, hyperparameters
from xla_dynamo.training.loss_scaling import adapt_scale, keep_where, unscale
from xla_dynamo.training.optimizer_trace import StateKey, trace_optimizer
from xla_dynamo.training.step_inputs import Key, StepSettings
from xla_dynamo.training.traced_forward import TracedForward
from xla_dynamo.training.weight_averaging import average_weights, averaged_tensors

Tensor: TypeAlias = torch.Tensor


@allow_in_graph
def the_loss(loss: Tensor) -> Tensor:
    """Mark what the gradients are of.

    A step hands on what is detached from it: Dynamo refuses a graph whose result has a history
    that begins at a `requires_grad_()` inside, as that of a gradient penalty does.
    """
    return loss.clone()


def index_of_loss(forward: torch.fx.GraphModule) -> int:
    """Which output of Dynamo's graph is the loss, which the graph then returns with its history.

    Raises:
        UnsupportedError: none is.
    """
    output = forward.graph.output_node()
    outputs: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for index, node in enumerate(outputs):
        source = node.args[0] if isinstance(node, torch.fx.Node) and node.args else None
        if isinstance(source, torch.fx.Node) and source.target is the_loss:
            outputs[index] = source
            output.args = (tuple(outputs),)
            forward.recompile()
            return index
        if isinstance(node, torch.fx.Node) and node.target is the_loss:
            return index
    raise UnsupportedError(NO_LOSS)


NO_LOSS = (
    "loss_fn must return the loss, a floating-point scalar tensor that depends on the model, or a "
    "tuple that begins with it"
)

NO_NESTED = (
    "train_step cannot trace nested tensors, whose sizes are symbols of their own. Hand it values "
    "and offsets, and call torch.nested.nested_tensor_from_jagged in the loss function; or call "
    "loss.backward() and optimizer.step() in eager on a model compiled with "
    "torch.compile(model, backend='openxla')"
)


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
        params: Mapping[Tensor, int | None],
        beside: Mapping[Key, Tensor],
        settings: StepSettings,
    ) -> None:
        """Trace Dynamo's graph of the forward, called with `args`, and what the settings add."""
        self._forward, self._settings, self._params = forward, settings, params
        self._keys, self._count = list(beside), len(args)
        self._args = args
        self._hyperparameters = hyperparameters(settings.optimizer)
        self.numbers = [n for n in self._hyperparameters if n in settings.varying]
        self._loss = index_of_loss(forward)
        self.created: list[StateKey] = []
        self.guards: list[tuple[Name, Callable[[Any], bool], bool]] = []
        self.without_gradient: list[Tensor] = []
        if any(isinstance(a, torch.Tensor) and a.is_nested for a in args):
            raise UnsupportedError(NO_NESTED)
        _check_gradients_of_gradients(forward)
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        vector = torch.empty(len(self.numbers), dtype=torch.float64)
        self.fakes = [
            mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a
            for a in (*args, *beside.values(), vector)
        ]
        with tracing(), mode, preserve_node_meta():
            self.gm = make_fx(self._step)(*self.fakes)
        _check_writes(self.gm)

    def _step(self, *flat: Any) -> list[Any]:
        args, rest, vector = flat[: self._count], flat[self._count : -1], flat[-1]
        beside = dict(zip(self._keys, rest, strict=True))
        params = []
        for index, (real, number) in enumerate(self._params.items()):
            params.append(beside["parameter", index] if number is None else args[number])
            params[-1].__dict__.update(real.__dict__)  # marks that an optimizer may look for
        with torch.enable_grad():
            # Checkpointed regions as if they were not: XLA keeps or recomputes what it likes.
            outputs = list(TracedForward(self._forward).run(*args))
        device = outputs[self._loss].device.type
        with torch.autocast(device, enabled=False):
            with phase(BACKWARD):
                grads = self._gradients(outputs[self._loss], params, beside.get(("scale",)))
            with torch.no_grad(), phase("optimizer: scaling of gradients"):
                created = self._update(args, params, grads, beside, vector)
        return [o.detach() if isinstance(o, torch.Tensor) else o for o in outputs] + created

    def _gradients(
        self, loss: Tensor, params: list[Tensor], scale: Tensor | None
    ) -> list[Tensor | None]:
        _check_loss(loss)
        with torch.enable_grad():
            if scale is not None:
                loss = loss * scale
            if self._settings.accumulates:
                loss = loss / self._settings.accumulation_steps
            inputs = enumerate(self._params.values())
            used = [i for i, number in inputs if number is not None and params[i].requires_grad]
            if not used:
                raise UnsupportedError(
                    "the optimizer has none of the parameters that the loss is made of"
                )
            found = torch.autograd.grad(loss, [params[i] for i in used], allow_unused=True)
        grads: list[Tensor | None] = [None] * len(params)
        for i, grad in zip(used, found, strict=True):
            grads[i] = grad
        reals = list(self._params)
        self.without_gradient = [reals[i] for i in used if grads[i] is None]
        for grad in grads:
            if grad is not None and grad.layout is not torch.strided:
                raise UnsupportedTensor(
                    f"train_step got a gradient of layout {grad.layout}; make it dense "
                    "(nn.Embedding(sparse=False))"
                )
        return grads

    def _update(
        self,
        args: Sequence[Any],
        params: list[Tensor],
        grads: list[Tensor | None],
        beside: Mapping[Key, Tensor],
        vector: Tensor,
    ) -> list[Tensor]:
        """Everything after the backward; returns the new tensors of the optimizer's state."""
        settings = self._settings
        for index, grad in enumerate(grads):
            total = beside.get(("gradient", index))
            if total is not None:
                grads[index] = total if grad is None else total + grad
        if not settings.updates:
            for index, total in enumerate(grads):
                if total is not None:
                    beside["gradient", index].copy_(total)
            return []
        state = {key[1:]: t for key, t in beside.items() if key[0] == "state"}
        overflow, before = None, []
        others = [t for key, t in beside.items() if key[0] in ("attribute", "hyperparameter")]
        changing = [*params, *state.values(), *others]
        if ("scale",) in beside:
            overflow = unscale(grads, beside["scale",])
            before = [t.clone() for t in changing]
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        if settings.clip_gradients is not None:
            with phase("optimizer: clip_gradients"):
                _clip(settings.clip_gradients, [p for p in params if p.grad is not None])
        with phase(f"optimizer: {type(settings.optimizer).__name__}.step"):
            created = self._optimize(params, state, beside, vector)
        for p in params:
            p.grad = None
        if overflow is not None and settings.grad_scaler is not None:
            if created:
                raise UnsupportedError(
                    f"{type(settings.optimizer).__name__} makes state in its first step, which a "
                    "gradient scaler may skip: run one step in eager first"
                )
            keep_where(overflow, changing, before)
            adapt_scale(settings.grad_scaler, beside["scale",], beside["growth",], overflow)
        if settings.average is not None:
            with phase("optimizer: average of weights"):
                self._average(args, params, beside)
        return created

    def _optimize(
        self,
        params: list[Tensor],
        state: Mapping[StateKey, Tensor],
        beside: Mapping[Key, Tensor],
        vector: Tensor,
    ) -> list[Tensor]:
        numbers = dict(zip(self.numbers, vector.unbind(), strict=True))
        tensors = {key[1]: t for key, t in beside.items() if key[0] == "hyperparameter"}
        attributes = {key[1]: t for key, t in beside.items() if key[0] == "attribute"}
        mode = NumbersAsTensors(numbers, self._hyperparameters)
        traced = dict(zip(self._params, params, strict=True))
        created = trace_optimizer(
            self._settings.optimizer, traced, state, numbers | tensors, attributes, mode
        )
        self.created, self.guards = list(created), mode.guards
        return list(created.values())

    def _average(
        self, args: Sequence[Any], params: Sequence[Tensor], beside: Mapping[Key, Tensor]
    ) -> None:
        average = self._settings.average
        assert average is not None
        reals = (*self._args, *self._params)
        traced = {id(real): fake for real, fake in zip(reals, (*args, *params), strict=True)}
        pairs = averaged_tensors(average, self._settings.model)
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


def _clip(clip_gradients: Callable[[list[Tensor]], Any], params: list[Tensor]) -> None:
    grads = [(p.grad, storage_id(p.grad)) for p in params if p.grad is not None]
    if params:
        clip_gradients(params)
    if any(storage_id(grad) != memory for grad, memory in grads):
        raise UnsupportedError(
            "clip_gradients assigns to the .data of a gradient; change the gradient in place, or "
            "assign to the .grad of the parameter"
        )


def _check_writes(gm: torch.fx.GraphModule) -> None:
    """Refuse writes to tensors that are no inputs: tracing has already done them once."""
    for node in gm.graph.find_nodes(op="get_attr"):
        for user in node.users:
            known = isinstance(user.target, OpOverload)
            if known and schema(user.target).is_mutable and user.args[0] is node:
                raise UnsupportedError(
                    f"{user.target} changes a tensor that clip_gradients, the optimizer or the "
                    "average holds on to, which train_step does not know of; keep it in the "
                    "optimizer's state or in an attribute of the optimizer"
                )


def _check_gradients_of_gradients(forward: torch.fx.GraphModule) -> None:
    grads = forward.graph.find_nodes(op="call_function", target=torch.autograd.grad)
    applied = users_function(forward)
    if applied is not None and any(node.kwargs.get("create_graph") for node in grads):
        raise UnsupportedError(
            "the loss of train_step has a gradient under create_graph=True, and torch.compile does "
            f"not keep all of a user's own backward{describe(applied)}\n  write the function "
            "without torch.autograd.Function, or train the model in eager"
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
