"""The user's own optimizer, run on tensors of a trace in the place of parameters.

Its state and hyperparameters are inputs of the traced step, so the optimizer object stays what it
is: its `state_dict` is true after every step, and schedulers change its `param_groups`.
"""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.hyperparameters import Name, NumbersAsTensors, as_if_compiling, with_values

Optimizer: TypeAlias = torch.optim.Optimizer
Tensor: TypeAlias = torch.Tensor
# Where a tensor of the state is: the position of its parameter, and its name.
Place: TypeAlias = tuple[int, str]

# Forms of one formula: the traced step takes the plain one, whose loops XLA fuses anyway.
_FORM = {"capturable": True, "foreach": False, "fused": False}


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse what a traced step would silently leave out.

    Raises:
        UnsupportedError: the optimizer evaluates the model itself, wants sparse gradients, or has
            hooks.
    """
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise UnsupportedError(
            f"train_step cannot trace {type(optimizer).__name__}, which calls the model itself or "
            "wants sparse gradients; call loss.backward() on a model compiled with "
            "torch.compile(model, backend='openxla'), and optimizer.step() in eager"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UnsupportedError(
            "the optimizer has step hooks, which train_step would run once, while tracing, and "
            "never again; remove them, and do around step(...) what they do"
        )


def initialise_state(optimizer: Optimizer, params: Iterable[Tensor]) -> list[Tensor]:
    """Make the state that a first step would make, and return the parameters that had none."""
    new = [p for p in params if not optimizer.state.get(p)]
    if not new or not hasattr(optimizer, "_init_group"):
        return []
    grads = {p: p.grad for group in optimizer.param_groups for p in group["params"]}
    try:
        for p in grads:
            p.grad = None
        for p in new:
            p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand_as(p)
        lists = len(inspect.signature(optimizer._init_group).parameters) - 1
        for group in optimizer.param_groups:
            optimizer._init_group(group, *([] for _ in range(lists)))
            if isinstance(optimizer, torch.optim.SGD):
                _initialise_momentum(optimizer, group)
    finally:
        for p, grad in grads.items():
            p.grad = grad
    return new


def _initialise_momentum(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """SGD makes its buffer in the first step, of the gradient; zeros do, without dampening."""
    if group["momentum"] and not group["dampening"]:
        for p in group["params"]:
            if p.grad is not None:
                zeros = torch.zeros_like(p, memory_format=torch.preserve_format)
                optimizer.state[p]["momentum_buffer"] = zeros


def trace_optimizer(
    optimizer: Optimizer,
    params: Mapping[Tensor, Tensor],
    state: Mapping[Place, Tensor],
    numbers: Mapping[Name, Tensor],
    mode: NumbersAsTensors,
) -> dict[Place, Tensor]:
    """Run `optimizer.step()` on traced tensors, which have their gradients in `.grad`.

    Args:
        optimizer: it stays as it is: a stand-in of its class runs.
        params: the traced tensors of its parameters, those that the model uses.
        state: the traced tensors of its state.
        numbers: the traced tensors of its hyperparameters.
        mode: what the step runs in.

    Returns:
        The tensors of the state that are new; those that were there are changed in place.

    Raises:
        UnsupportedError: the step changes numbers, which would stay as they were traced.
    """
    traced = list(params.values())
    before = {p: dict(optimizer.state.get(real, {})) for real, p in params.items()}
    for (index, name), tensor in state.items():
        before[traced[index]][name] = tensor
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        mine = [params[p] for p in group["params"] if p in params]
        form = {k: v for k, v in _FORM.items() if k in group}
        groups.append(with_values(index, {**group, **form, "params": mine}, numbers))
    stand_in = object.__new__(type(optimizer))
    stand_in.__dict__.update(optimizer.__dict__)
    stand_in.__dict__.pop("step", None)  # a learning-rate scheduler counts calls there
    stand_in.param_groups = [dict(group) for group in groups]
    stand_in.state = defaultdict(dict, {p: dict(entries) for p, entries in before.items()})
    step = type(optimizer).step
    if getattr(
        step, "hooked", False
    ):  # by torch, for its profiler, whose operators would be traced
        step = step.__wrapped__  # type: ignore[attr-defined]
    with as_if_compiling(), mode, torch.no_grad():
        step(stand_in)
    for index, (group, after) in enumerate(zip(groups, stand_in.param_groups, strict=True)):
        for name, value in after.items():
            if name != "params" and value is not group.get(name) and value != group.get(name):
                raise _changed(optimizer, f"param_groups[{index}][{name!r}]", value)
    created = {}
    for index, p in enumerate(traced):
        for name, value in stand_in.state[p].items():
            was = before[p].get(name)
            if value is was:
                continue
            if not isinstance(value, torch.Tensor):
                if value != was:
                    raise _changed(optimizer, f"state[...][{name!r}]", value)
            elif isinstance(was, torch.Tensor) and _alike(was, value):
                was.copy_(value)
            else:
                created[index, name] = value
    return created


def _changed(optimizer: Optimizer, what: str, value: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(optimizer).__name__}.step() sets {what} to {value!r}: a compiled step would set it "
        "to that at every call; keep it in a tensor, as torch's own optimizers do"
    )


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
