"""`train_step`: the whole training step, forward, backward and optimizer, as one executable."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import OptionError, UnsupportedError
from xla_dynamo.events import Observer
from xla_dynamo.options import Options
from xla_dynamo.torch_private import dynamo_config, mark_stepped
from xla_dynamo.training.hyperparameters import hyperparameters
from xla_dynamo.training.optimizer_trace import check_hooks, check_optimizer
from xla_dynamo.training.skipped_logging import logging_is_skipped
from xla_dynamo.training.step_inputs import StepSettings
from xla_dynamo.training.step_trace import NO_LOSS, the_loss
from xla_dynamo.training.weight_averaging import check_average
from xla_dynamo.training.whole_step import WholeStep
from xla_dynamo.variants.meanwhile import is_ahead

Tensor: TypeAlias = torch.Tensor


def train_step(
    model: torch.nn.Module,
    loss_fn: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    *,
    accumulation_steps: int = 1,
    clip_gradients: Callable[[list[Tensor]], Any] | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
    average: torch.optim.swa_utils.AveragedModel | None = None,
    options: Mapping[str, Any] | None = None,
) -> "TrainStep":
    """Compile a training step into one executable.

    `step = train_step(model, loss_fn, optimizer); loss = step(*batch)` does what

        optimizer.zero_grad()
        loss = loss_fn(model, *batch)
        loss.backward()
        optimizer.step()

    does, with parameters, buffers and the optimizer's state changed in their own memory.

    Args:
        model: the module to train.
        loss_fn: called as `loss_fn(model, *batch)`; returns the loss, a floating-point scalar, or a
            tuple of the loss and whatever else `step` shall return. What it returns has no history
            for autograd; what is a view of a parameter or of a buffer stays one.
        optimizer: made for the model's parameters, on which it acts.
        accumulation_steps: the optimizer acts in every n-th call, on the mean of the gradients of n
            calls; until then they are added up in the parameters' `.grad`.
        clip_gradients: called with the parameters, which have their gradients in `.grad`, before
            the optimizer acts: `functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=1.0)`.
            It is traced, so what else it does happens once.
        grad_scaler: scales the loss for float16, and skips steps whose gradients overflow.
        average: a running average of the weights, updated after each step of the optimizer.
        options: as for `torch.compile(..., backend="openxla", options=...)`.

    Raises:
        UnsupportedError: the optimizer cannot be traced, as `check_optimizer` says, or the average
            is not one of the model.
        OptionError: see `Options`.
    """
    return TrainStep(
        StepSettings(
            model,
            optimizer,
            accumulation_steps,
            clip_gradients,
            grad_scaler,
            average,
            options,
            varying={n for n in hyperparameters(optimizer) if n[1] == "lr"},
        ),
        loss_fn,
    )


class TrainStep:
    """A compiled training step: see `train_step`."""

    def __init__(self, settings: StepSettings, loss_fn: Callable[..., Any]) -> None:
        check_optimizer(settings.optimizer)
        check_average(settings.average, settings.model)
        Options.parse(settings.options)
        self._settings = settings
        self._lock = threading.Lock()
        self._accumulated = 0
        model = settings.model

        def forward(*args: Any, **kwargs: Any) -> Any:
            returned = loss_fn(model, *args, **kwargs)
            if isinstance(returned, torch.Tensor):
                return the_loss(returned).detach()
            if isinstance(returned, tuple) and returned and isinstance(returned[0], torch.Tensor):
                return (the_loss(returned[0]).detach(), *returned[1:])
            return returned

        def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> WholeStep:
            return WholeStep(gm, example_inputs, settings)

        self._forward = torch.compile(forward, backend=backend, fullgraph=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch, and return what the loss function returns, without its history.

        Raises:
            UnsupportedError: the loss is no scalar, or the optimizer cannot be traced.
            torch._dynamo.exc.Unsupported: Dynamo cannot make one graph of the loss function.
        """
        if is_ahead():
            raise OptionError(
                "precompile cannot call a train_step, which would train: its first call compiles it"
            )
        settings = self._settings
        check_hooks(settings.optimizer)
        with self._lock, torch.enable_grad(), _capture_all():
            settings.updates = self._accumulated + 1 >= settings.accumulation_steps
            settings.ran = False
            if not settings.accumulates:
                settings.optimizer.zero_grad()
            returned = self._forward(*args, **kwargs)
            if not settings.ran:
                raise UnsupportedError(NO_LOSS)
            self._accumulated = 0 if settings.updates else self._accumulated + 1
        mark_stepped(settings.optimizer)
        return returned

    def observe(self, observer: Observer) -> None:
        """Tell an observer what is compiled from now on (see `explain`)."""
        self._settings.observer = observer

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrainStep":
        raise TypeError("a train_step belongs to its model: copy that, and make a new train_step")


def _capture_all() -> contextlib.AbstractContextManager[None]:
    """Let Dynamo trace recurrent layers, past logging, and (from 2.12) `torch.autograd.grad`."""
    wanted = {"allow_rnn": True, "trace_autograd_ops": True, **logging_is_skipped()}
    return dynamo_config.patch(
        {name: value for name, value in wanted.items() if hasattr(dynamo_config, name)}
    )
