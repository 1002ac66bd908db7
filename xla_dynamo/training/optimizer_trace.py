"""Run the user's own optimizer on tensors of a trace in place of parameters.

The optimizer's state and hyperparameters are inputs of the traced step. So its `state_dict` is true
after every step, and schedulers may change its `param_groups`.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.memory.changes import note_step
from xla_dynamo.torch_private import (
    has_gradient_hooks,
    init_group,
    is_counted_by_scheduler,
    makes_state_in_groups,
    step_hooks,
    storage_id,
)
from xla_dynamo.torch_threads import as_if_compiling
from xla_dynamo.training.hyperparameters import Name, NumbersAsTensors, with_values

Optimizer: TypeAlias = torch.optim.Optimizer
Tensor: TypeAlias = torch.Tensor
# Where a tensor of the state is: the position of its parameter, and its name.
StateKey: TypeAlias = tuple[int, str]

_IN_EAGER = (
    "call loss.backward() on a model compiled with torch.compile(model, backend='openxla'), and "
    "optimizer.step() in eager"
)

# Forms of one formula: the traced step takes the plain one, whose loops XLA fuses anyway.
_FORM = {"capturable": True, "foreach": False, "fused": False}


def owned_parameters(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that an optimizer has."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse what a traced step would silently leave out.

    Raises:
        UnsupportedError: the optimizer evaluates the model itself, wants sparse gradients, is made
            of another optimizer, or it or its parameters have hooks.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise UnsupportedError(
            f"train_step cannot trace {name}, which calls the model itself or wants sparse "
            f"gradients; {_IN_EAGER}"
        )
    if any(isinstance(value, torch.optim.Optimizer) for value in vars(optimizer).values()):
        raise UnsupportedError(
            f"train_step cannot trace {name}, which hands its work to another optimizer; "
            f"{_IN_EAGER}"
        )
    step = vars(optimizer).get("step")
    if step is not None and not is_counted_by_scheduler(step):
        raise UnsupportedError(
            f"somebody has replaced the step() of this {name}; train_step runs that of the class"
        )
    check_hooks(optimizer)


def check_hooks(optimizer: Optimizer) -> None:
    """Refuse hooks that would run once, while tracing, or never.

    Raises:
        UnsupportedError: the optimizer, all optimizers, or one of its parameters have hooks.
    """
    hooks = [hook for each in step_hooks(optimizer) for hook in each.values()]
    if any(hook is not note_step for hook in hooks):
        raise UnsupportedError(
            "train_step does not run step hooks of optimizers: remove them, and do what they do "
            "around step(...)"
        )
    for p in owned_parameters(optimizer):
        if has_gradient_hooks(p):
            raise UnsupportedError(
                f"a parameter of shape {tuple(p.shape)} has hooks on its gradient, which "
                "train_step does not run: change gradients with clip_gradients=..., which gets the "
                "parameters"
            )


def initialise_state(optimizer: Optimizer, params: Iterable[Tensor]) -> list[Tensor]:
    """Make the state that a first step would make, and return the parameters that had none."""
    new = [p for p in params if not optimizer.state.get(p)]
    is_of_torch = type(optimizer).__module__.startswith("torch.optim")
    if not new or not is_of_torch or not makes_state_in_groups(optimizer):
        return []  # what else the class makes in its first step, the traced step makes
    grads = {p: p.grad for p in owned_parameters(optimizer)}
    try:
        for p in grads:
            p.grad = None
        for p in new:
            p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand_as(p)
        initialise = init_group(optimizer)
        lists = len(inspect.signature(initialise).parameters) - 1
        for group in optimizer.param_groups:
            initialise(group, *([] for _ in range(lists)))
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
    state: Mapping[StateKey, Tensor],
    numbers: Mapping[Name, Tensor],
    attributes: Mapping[str, Tensor],
    mode: NumbersAsTensors,
) -> dict[StateKey, Tensor]:
    """Run `optimizer.step()` on traced tensors, which have their gradients in `.grad`.

    Args:
        optimizer: it stays as it is: a stand-in of its class runs.
        params: the traced tensors of its parameters, those that the model uses.
        state: the traced tensors of its state.
        numbers: the traced tensors of its hyperparameters.
        attributes: the traced tensors among its own attributes.
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
    stand_in.__dict__.update(optimizer.__dict__, **attributes)
    stand_in.__dict__.pop("step", None)  # a learning-rate scheduler counts calls there
    stand_in.param_groups = [dict(group) for group in groups]
    stand_in.state = defaultdict(dict, {p: dict(entries) for p, entries in before.items()})
    others = _copies({k: v for k, v in stand_in.__dict__.items() if k not in _TRACED})
    memory = [storage_id(p) for p in traced]
    step = type(optimizer).step
    if getattr(step, "hooked", False):  # by torch's profiler, whose operators would be traced
        step = step.__wrapped__  # type: ignore[attr-defined]
    with as_if_compiling(), mode, torch.no_grad():
        step(stand_in)
    _check_left_alone(optimizer, groups, stand_in, others)
    if [storage_id(p) for p in traced] != memory:
        raise UnsupportedError(
            f"{type(optimizer).__name__}.step() assigns to the .data of a parameter; change the "
            "parameter in place instead, with p.copy_(...) or p.sub_(...)"
        )
    return _write_state(optimizer, traced, before, stand_in.state)


_TRACED = ("param_groups", "state")


def _copies(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries, with copies of the containers among them."""
    kinds = list | dict | set
    return {k: copy.copy(v) if isinstance(v, kinds) else v for k, v in entries.items()}


def _check_left_alone(
    optimizer: Optimizer, groups: list[dict[str, Any]], stand_in: Any, others: Mapping[str, Any]
) -> None:
    """Refuse a step that has changed what is not a tensor of the state."""
    for index, (group, after) in enumerate(zip(groups, stand_in.param_groups, strict=True)):
        for name, value in after.items():
            if name != "params" and not _same(value, group.get(name)):
                raise _changed(optimizer, f"param_groups[{index}][{name!r}]", value)
    for name, value in stand_in.__dict__.items():
        if name not in _TRACED and not (name in others and _same(value, others[name])):
            raise _changed(optimizer, f"self.{name}", value)
    for key in stand_in.state:
        if not isinstance(key, torch.Tensor):
            raise _changed(optimizer, f"state[{key!r}]", stand_in.state[key])


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return False
    return bool(type(a) is type(b) and a == b)


def _write_state(
    optimizer: Optimizer, params: Sequence[Tensor], before: Any, after: Any
) -> dict[StateKey, Tensor]:
    """Give the state its new values, in place; returns those that have no place yet."""
    created, changed = {}, []
    for index, p in enumerate(params):
        gone = before[p].keys() - after[p].keys()
        if gone:
            raise _changed(optimizer, f"state[...][{gone.pop()!r}]", "nothing")
        for name, value in after[p].items():
            was = before[p].get(name)
            if value is was:
                continue
            if not isinstance(value, torch.Tensor):
                if not _same(value, was):
                    raise _changed(optimizer, f"state[...][{name!r}]", value)
            elif isinstance(was, torch.Tensor) and _alike(was, value):
                changed.append((was, value.clone()))  # it may be another tensor of the state
            else:
                created[index, name] = value.clone()
    for was, value in changed:
        was.copy_(value)
    return created


def _changed(optimizer: Optimizer, what: str, value: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(optimizer).__name__}.step() sets {what} to {value!r}: a compiled step would set it "
        "to that at every call; keep it in a tensor, as torch's own optimizers do"
    )


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
