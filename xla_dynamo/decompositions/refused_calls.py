"""Refuse, while a graph is traced, the calls that eager refuses.

A trace meets each operator that eager would run before it takes the operator apart: in the table of
decompositions, whose entries may also leave an operator as it is. A few meet torch's Python
dispatcher first, and what is written into `out=` is seen in Dynamo's graph alone.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from xla_dynamo.decompositions.argument_checks import wrong_argument
from xla_dynamo.decompositions.eager_calls import can_be_asked, refusal, refusal_of_out
from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.decompositions.value_checks import assert_conditions, has_conditions
from xla_dynamo.decompositions.whole_resampling import DECOMPOSING
from xla_dynamo.errors import RefusedByEager
from xla_dynamo.graphs.signatures import call_signature
from xla_dynamo.graphs.source_lines import describe, describe_traced
from xla_dynamo.lowerings.table import TABLE
from xla_dynamo.torch_patches import Switch, switched, tracing
from xla_dynamo.torch_private import OpOverload, backward_id

aten = torch.ops.aten
# Those that torch's Python dispatcher takes apart before any table is asked.
_TAKEN_APART_EARLY = (
    aten.hardshrink.default,
    aten.multi_margin_loss.default,
    aten.multilabel_margin_loss_forward.default,
    aten.softshrink.default,
)


class _Inside(threading.local):
    """Whether a decomposition calls the operators that are traced: eager would not call those."""

    decomposition = False


_inside = _Inside()
_are_refused = Switch()


def _is_eagers() -> bool:
    """Whether eager would make the call that is traced here, in a forward."""
    return not _inside.decomposition and backward_id() == -1


@functools.cache
def refusing_decompositions(rng: str = "xla") -> dict[OpOverload, Callable[..., Any]]:
    """The table of `decompositions`, which raises RefusedByEager for calls that eager refuses.

    Those of a backward are not asked for: the program may never run it.
    """
    table = decompositions(rng)
    rules = {op for op in map(_overload, TABLE) if op is not None and can_be_asked(op)}
    found = {op: _refusing(op, table.get(op)) for op in table.keys() | rules}
    if rng == "xla":  # torch checks what it draws from
        found |= {op: _asserting(op, entry) for op, entry in found.items() if has_conditions(op)}
    return found


def _asserting(op: OpOverload, entry: Callable[..., Any]) -> Callable[..., Any]:
    """The entry of an operator that draws, behind assertions of what eager checks in its values."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        result = entry(*args, **kwargs)
        if _is_eagers():
            assert_conditions(op, args, kwargs, describe_traced())
        return result

    return checked


@contextmanager
def early_calls_are_refused() -> Iterator[None]:
    """Operators that meet torch's Python dispatcher first are refused there, in what is traced."""
    for op in _TAKEN_APART_EARLY:
        for key in DECOMPOSING:
            switched(_are_refused, op, key, functools.partial(_refusing, op))
    with tracing(), _are_refused.on():
        yield


def check_outs(gm: torch.fx.GraphModule) -> None:
    """Raise RefusedByEager if a call of Dynamo's graph gives an `out=` that eager refuses."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.kwargs.get("out") is None:
            continue
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), lambda n: n.meta.get("example_value")
        )
        if (reason := refusal_of_out(node.target, args, kwargs)) is not None:
            raise _error(node.target, args, kwargs, describe(node), reason)


def _error(op: Any, args: Any, kwargs: Any, place: str, reason: str) -> RefusedByEager:
    name = op if isinstance(op, OpOverload) else f"torch.{op.__name__}"
    return RefusedByEager(
        f"{call_signature(name, args, kwargs)}: eager PyTorch refuses this call on the CPU{place}\n"
        f"  {reason}"
    )


def _overload(name: str) -> OpOverload | None:
    """The overload of ATen of a name of the lowering table; None where torch has none such."""
    namespace, *rest = name.split(".")
    found: Any = torch.ops.aten if namespace == "aten" and len(rest) == 2 else None
    for part in rest:
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def _refusing(op: OpOverload, decompose: Callable[..., Any] | None) -> Callable[..., Any]:
    """The entry of an operator; `decompose` is None if it is left whole."""
    asked = can_be_asked(op)

    def entry(*args: Any, **kwargs: Any) -> Any:
        if asked and _is_eagers():
            reason = wrong_argument(op, args, kwargs) or refusal(op, args, kwargs)
            if reason is not None:
                raise _error(op, args, kwargs, describe_traced(), reason)
        if decompose is None:
            return NotImplemented
        before, _inside.decomposition = _inside.decomposition, True
        try:
            return decompose(*args, **kwargs)
        finally:
            _inside.decomposition = before

    return entry
