"""The lowering table: ATen overloads to the rules that write them in StableHLO."""

import collections
import dataclasses
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jax.extend.mlir import ir

from xla_dynamo.lowerings.target import Target
from xla_dynamo.torch_private import OpOverload, schema

Rule = Callable[..., Any]


class _Packet:
    """An operator's overloads: `aten.add.Tensor`, or its name where this torch has none such."""

    def __init__(self, name: str) -> None:
        self._name, self._packet = name, getattr(torch.ops.aten, name, None)

    def __getattr__(self, overload: str) -> Any:
        if overload.startswith("__"):
            raise AttributeError(overload)
        return getattr(self._packet, overload, f"aten.{self._name}.{overload}")

    def __repr__(self) -> str:
        return f"aten.{self._name}"


class _Aten:
    """`torch.ops.aten`, where an overload that this version of torch lacks is its name.

    Operators come and go between versions of torch. A rule of one that is not there must be no
    error: `lowers` takes names, and no graph will have the operator.
    """

    def __getattr__(self, name: str) -> _Packet:
        if name.startswith("__") and not hasattr(torch.ops.aten, name):
            raise AttributeError(name)  # Python's own, not an operator as aten.__lshift__
        packet = _Packet(name)
        setattr(self, name, packet)
        return packet


aten: Any = _Aten()
_R = TypeVar("_R", bound=Rule)

# By `str(overload)`, so that operators of libraries that are not imported have their place too.
TABLE: dict[str, Rule] = {}
# Functions that say, by the arguments' fake values, why a rule cannot lower a call.
_REFUSALS: dict[str, Callable[..., str | None]] = {}
# The module that registered each rule, for messages and the generated page.
REGISTERED_IN: dict[str, str] = {}


@dataclasses.dataclass(slots=True)
class Context:
    """What a rule may read beside its operands.

    Attributes:
        out: the node's promised result, `node.meta["val"]`: a fake tensor, a tuple of them (with
            None for results nobody asked for), or a number. A rule reads `.shape` and `.dtype`.
        operands: the node's positional arguments with fake tensors where the rule gets values.
        target: what the program is for; a rule reads `.platform` and `.libraries` of it here.
        module: the MLIR module under construction, for rules that add a function to it.
        functions: inlined functions by their key (see `from_jax`), so that each is added once.
        random_key: makes a fresh ui64[2] key for a random op; a new one at each call.
        calls: how often the program calls each kernel in Python.
        asked: calls whose form was looked up among measured ones.
        trains: whether the graph has a backward, or is one.
        inline: lowers a graph inside the graph, the body of a branch or loop, at the insertion
            point: takes the FX graph, or a function of torch that is traced; its inputs as values
            and as fake tensors; and in a loop the number of the `step`, an int64. Returns the list
            of its outputs.
    """

    out: Any
    operands: tuple[Any, ...]
    target: Target
    module: ir.Module
    functions: dict[Any, Any]
    random_key: Callable[[], ir.Value]
    calls: collections.Counter[str]
    asked: set[Any]
    trains: bool
    inline: Callable[..., list[Any]]

    @property
    def platform(self) -> str:
        """The PJRT platform that the program is for: "cpu", "cuda", "tpu"."""
        return self.target.platform

    @property
    def libraries(self) -> frozenset[str]:
        """The libraries, by name, that the program may call."""
        return self.target.libraries


def find_rule(op: Any) -> Rule | None:
    """The rule of an operator overload, or None."""
    return TABLE.get(str(op))


def find_refusal(op: Any) -> Callable[..., str | None] | None:
    """The function that says why a rule cannot lower a call; None without one (see `refuses`)."""
    return _REFUSALS.get(str(op))


def refuses(*ops: OpOverload | str) -> Callable[[_R], _R]:
    """Register a function that says why a rule cannot lower a call with these fake values.

    The function returns the reason, or None. Calls with a reason run in eager torch.
    """

    def register(refusal: _R) -> _R:
        _REFUSALS.update({str(op): refusal for op in ops})
        return refusal

    return register


def _copy_of(op: OpOverload | str) -> str | None:
    """The overload of ATen that copies what this one views; None if it views nothing."""
    if not isinstance(op, OpOverload) or not any(r.alias_info for r in schema(op).returns):
        return None
    name, _, overload = str(op).rpartition(".")
    packet = getattr(torch.ops.aten, f"{name.removeprefix('aten.')}_copy", None)
    known = packet is not None and overload in packet.overloads()
    return f"{name}_copy.{overload}" if known else None


def lowers(*ops: OpOverload | str) -> Callable[[_R], _R]:
    """Register a rule for one or more operator overloads.

    An operator of a library that may not be imported yet is given by name, as in
    "namespace.operator.overload".

    What makes a view in torch has one more overload, as `aten.permute_copy.default`, that makes a
    copy. It is given the same rule, since values have no memory here.

    A rule takes a `Context` and then the operator's arguments, named and defaulted as in its
    schema; tensors arrive as `ir.Value`, numbers and lists as they stand in the graph. It emits
    StableHLO at the current insertion point and returns one value, or a tuple of values for an
    operator of several results.

    >>> @lowers(aten.permute.default)
    ... def permute(ctx, x, dims):
    ...     return hlo.transpose(x, [d % len(dims) for d in dims])

    Raises:
        TypeError: an argument is not an overload (`aten.add` instead of `aten.add.Tensor`).
        ValueError: the overload has a rule already.
    """
    module = sys._getframe(1).f_globals.get("__name__", "?")
    for op in ops:
        if not isinstance(op, OpOverload | str):
            raise TypeError(
                f"lowers() takes operator overloads, not {op!r}: name one, such as {op}.default"
            )
        if find_rule(op) is not None:
            raise ValueError(f"{op} has a rule already, in {REGISTERED_IN[str(op)]}")

    def register(rule: _R) -> _R:
        for op in (*map(str, ops), *filter(None, map(_copy_of, ops))):
            TABLE[op], REGISTERED_IN[op] = rule, module
        return rule

    return register
