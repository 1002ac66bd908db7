"""`torch_xla.experimental.scan_layers`: layers of one structure as one loop over their weights."""

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import default_partition
from torch import nn

from xla_dynamo.runtime import marks
from xla_dynamo.spmd.operators import mark_in_graph
from xla_dynamo.torch_xla.forms.scan import scan

State = Mapping[str, torch.Tensor]
Function = Callable[..., Any]

# Of layers that are promised to be pure: what a loop does with each, by what is in training. So
# `scan` knows it again.
_ONE_LAYER_CACHE: "weakref.WeakKeyDictionary[nn.Module, dict[Any, Function]]" = (
    weakref.WeakKeyDictionary()
)


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Function = default_partition,
    is_layer_pure: bool = False,
) -> Any:
    """What layers of one structure make of a value, one after another, as one loop.

    It is what `nn.Sequential` makes of it. The program has one layer, however many there are.
    Weights that are sharded are stacked as they are sharded, and so are their gradients.

    Args:
        layers: they have parameters and buffers of the same names, shapes and dtypes, and compute
            the same but for these.
        input_data: what the first one takes: a tensor, or a tuple for several arguments.
        partition_fn: as for `scan`.
        is_layer_pure: whether a layer depends on nothing but its state and its input.

    Raises:
        ValueError: the layers differ in their parameters' or buffers' names, shapes or dtypes.
        RuntimeError: a layer writes into a buffer, as batch normalization does in training.
    """
    every = list(layers)
    if not every:
        return input_data
    states = [_state(layer) for layer in every]
    _check_alike(states)
    stacked = {name: _stacked([state[name] for state in states]) for name in states[0]}
    step = _pure_step(every[0]) if is_layer_pure else _step_of(every[0])
    return scan(step, input_data, stacked, partition_fn, is_layer_pure)[0]


def _state(layer: nn.Module) -> dict[str, torch.Tensor]:
    return dict([*layer.named_parameters(), *layer.named_buffers()])


def _step_of(layer: nn.Module) -> Function:
    def step(carried: Any, state: State) -> tuple[Any, None]:
        return torch.func.functional_call(layer, dict(state), carried), None

    return step


def _pure_step(layer: nn.Module) -> Function:
    known = _ONE_LAYER_CACHE.setdefault(layer, {})
    modes = tuple(module.training for module in layer.modules())
    if modes not in known:
        # A copy without memory: the cache must not keep the layer.
        empty: dict[int, Any] = {id(t): t.detach().to("meta") for t in _state(layer).values()}
        known[modes] = _step_of(copy.deepcopy(layer, empty))
    return known[modes]


def _check_alike(states: Sequence[State]) -> None:
    first = states[0]
    for number, state in enumerate(states[1:], start=1):
        if missing := set(first) ^ set(state):
            raise ValueError(
                f"layer {number} has mismatched keys: {sorted(missing)} are in it or in layer 0, "
                "and not in both"
            )
        for name, tensor in state.items():
            for what, one, other in (
                ("Shape", tuple(first[name].shape), tuple(tensor.shape)),
                ("Dtype", first[name].dtype, tensor.dtype),
            ):
                if one != other:
                    raise ValueError(
                        f"{what} mismatch for {name!r} in layer {number}: expected {one}, got "
                        f"{other}"
                    )


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors one behind the other, sharded as they are, and their gradients so, too."""
    stacked = torch.stack(list(tensors))
    if torch.compiler.is_compiling():
        return stacked
    found = [marks.sharding_of(t) for t in tensors]
    first = found[0]
    if first is None or any(other != first for other in found):
        return stacked
    return mark_in_graph(stacked, first.mesh, [[], *map(list, first.axes)], True)
