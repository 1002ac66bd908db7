"""Draw the random numbers of a record from a key of its own.

The key is drawn from the device's generator when the operator is recorded. So one seed gives the
same numbers however records become programs, and whether or not others are computed.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.graphs.nodes import draws_nothing, run_with_rng_state
from xla_dynamo.lowerings.table import find_rule
from xla_dynamo.torch_private import OpOverload, TorchDispatchMode, schema

aten = torch.ops.aten
# The bytes of a key: what a program has beside it is the number of the draw (`rules.random`).
KEY_BYTES = 16
# Functional forms that have another name than the operator in place.
_FUNCTIONAL: dict[OpOverload, OpOverload] = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.normal_.default: aten.normal_functional.default,
}
_OF_FACTORIES = ("dtype", "layout", "device", "pin_memory")
_RRELUS = frozenset({aten.rrelu_with_noise, aten.rrelu_with_noise_})


def packed(keys: list[int]) -> torch.Tensor:
    """The keys of a program's draws, a row of bytes each."""
    rows = torch.zeros(len(keys), 2, dtype=torch.int64)
    rows[:, 0] = torch.tensor(keys, dtype=torch.int64)
    return rows.view(torch.uint8)


@functools.cache
def keyed(op: Any) -> Callable[..., Any]:
    """An operator that takes a key before its arguments. It is called while AOTAutograd traces."""

    def call(key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with Keyed(key):
            return op(*args, **kwargs)

    return call


class Keyed(TorchDispatchMode):
    """Let operators draw from a key, where AOTAutograd traces them."""

    def __init__(self, key: torch.Tensor) -> None:
        super().__init__()
        self._key, self._count = key, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or draws_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        if func in decompositions() and func is not aten.bernoulli.default:
            with self:  # its parts draw
                return decompositions()[func](*args, **kwargs)
        if func.overloadpacket in _RRELUS:  # writes what it drew into its second argument
            result, noise = self._drawn(aten.rrelu_with_noise_functional.default, args, kwargs)
            args[1].copy_(noise)
            in_place = func is aten.rrelu_with_noise_.default
            return args[0].copy_(result) if in_place else result
        written = [a for a in schema(func).arguments if a.alias_info and a.alias_info.is_write]
        if not written:
            return self._drawn(func, args, kwargs)
        functional = _functional(func)
        if functional is None or len(written) > 1:
            return func(*args, **kwargs)  # from the program's seed
        # The other's defaults may be none, as for the 0.5 of `bernoulli_`.
        left_out = [a for a in schema(func).arguments[len(args) :] if not a.kwarg_only]
        args = (*args, *(kwargs.get(a.name, a.default_value) for a in left_out))
        kwargs = {k: v for k, v in kwargs.items() if k not in [a.name for a in left_out]}
        target = kwargs.pop(written[0].name) if written[0].name in kwargs else args[0]
        if "dtype" in {a.name for a in schema(functional).arguments}:  # of no tensor but `out`
            kwargs |= {"dtype": target.dtype, "device": target.device}
        return target.copy_(self._drawn(functional, args, kwargs))

    def _drawn(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if find_rule(op) is None:
            return op(*args, **kwargs)  # torch runs it
        key = self._key
        if self._count:  # another draw of the same operator
            key = key.clone()
            key[KEY_BYTES - 1] = self._count
        self._count += 1
        return run_with_rng_state(key, op, *args, **kwargs)


@functools.cache
def _functional(op: OpOverload) -> OpOverload | None:
    """What computes the same as an operator in place, or with `out=`, and writes nothing."""
    if op in _FUNCTIONAL:
        return _FUNCTIONAL[op]
    arguments = schema(op).arguments
    name = schema(op).name.removeprefix("aten::").removesuffix("_")
    packet = getattr(aten, name, None)
    names = [(a.name, str(a.type)) for a in arguments if not a.is_out]
    for overload in packet.overloads() if packet is not None else ():
        other = getattr(packet, overload)
        others = schema(other).arguments
        plain = not any(a.alias_info and a.alias_info.is_write for a in others)
        given = [(a.name, str(a.type)) for a in others if a.name not in _OF_FACTORIES]
        if plain and given == names:
            return other
    return None
