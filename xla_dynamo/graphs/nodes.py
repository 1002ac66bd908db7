"""Predicates of nodes of an ATen graph: random, an effect, a write into an input, a size."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.keyword_names import name_keywords
from xla_dynamo.lowerings.table import aten as present  # with names for what torch lacks
from xla_dynamo.torch_private import HigherOrderOperator, OpOverload, schema

Node: TypeAlias = torch.fx.Node
aten = torch.ops.aten
while_loop_stack_output = torch.ops.higher_order.while_loop_stack_output
with_effects = torch.ops.higher_order.with_effects
# Raises an error with a text unless a truth value holds: torch does it behind the program.
assertion = aten._assert_async.msg
# What checkpointing makes of a random operator: the forward saves the generator's state beside the
# result, and the backward draws from that state again. (op, *args) and (state, op, *args).
run_and_save_rng_state = torch.ops.higher_order.run_and_save_rng_state
run_with_rng_state = torch.ops.higher_order.run_with_rng_state
name_keywords()

# Arguments with which a random operator draws nothing.
_DRAWS_NOTHING = {"dropout_p": 0, "train": False, "training": False}


def operator_of(node: Node) -> Any:
    """The operator of a node: of a functionalized custom operator, that one."""
    wraps = str(node.target).startswith("auto_functionalized")
    return node.args[0] if wraps else node.target


def is_plain_effect(node: Node) -> bool:
    """Whether a `with_effects` node runs an operator that gives nothing: a check, a print."""
    op = node.args[1]
    return isinstance(op, OpOverload) and not schema(op).returns


def acts_behind(node: Node) -> bool:
    """Whether torch is to do something for a node when the program is over."""
    return node.target in (with_effects, assertion) or bool(node.kwargs.get("check_errors"))


def through_storage(gm: torch.fx.GraphModule) -> Iterator[Node]:
    """The nodes that address their operand's storage: as_strided and its scatter."""
    for op in (aten.as_strided.default, aten.as_strided_scatter.default):
        yield from gm.graph.find_nodes(op="call_function", target=op)


def is_number(node: Node) -> bool:
    """Whether a node is a size or another number, and not a tensor."""
    value = node.meta.get("val")
    kinds = int | float | bool | complex | torch.SymInt | torch.SymFloat | torch.SymBool
    return isinstance(value, kinds)


def is_index(node: Node) -> bool:
    """Whether a node reads a number off a tensor for `select` alone, which takes the tensor too."""
    return node.target is aten._local_scalar_dense.default and all(
        user.target is aten.select.int and user.args[2] is node and user.args[0] is not node
        for user in node.users
    )


def is_indexed(node: Node) -> bool:
    """Whether a node is a `select` at an index that `is_index` describes."""
    if node.target is not aten.select.int or not isinstance(node.args[2], torch.fx.Node):
        return False
    return is_index(node.args[2])


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors among a node's results."""
    value = node.meta.get("val")
    for part in value if isinstance(value, tuple | list) else (value,):
        if isinstance(part, torch.Tensor):
            yield part


def writes_input(node: Node) -> bool:
    """Whether a node is one of the `copy_` into an input that close a graph."""
    if node.target is not aten.copy_.default:
        return False
    target = node.args[0]
    return isinstance(target, torch.fx.Node) and target.op == "placeholder"


_UPDATES = (
    aten.index_copy, aten.index_put, aten._unsafe_index_put, aten.scatter, aten.select_scatter,
    aten.slice_scatter,
)  # fmt: skip


def is_updated_in_part(node: Node) -> bool:
    """Whether an input gets new elements in a part of it, as a cache of keys does."""
    written = (user.args[1] for user in node.users if writes_input(user) and user.args[0] is node)
    nodes = (value for value in written if isinstance(value, torch.fx.Node))
    return any(getattr(node.target, "overloadpacket", None) in _UPDATES for node in nodes)


_REPLACING = frozenset({present.set_.source_Tensor, present.shallow_copy_data_.default})


def replaces_input(node: Node) -> bool:
    """Whether a node is one of those at the end that give an input other memory, as `x.data = y`.

    It is a `set_` up to torch 2.13, and an operator of its own from 2.14.
    """
    return node.target in _REPLACING and node.args[0].op == "placeholder"  # type: ignore[union-attr]


def call_of(node: Node) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The operator of a node and its arguments, without the wrapping that checkpointing adds."""
    wrapping = {run_and_save_rng_state: 0, run_with_rng_state: 1}.get(node.target)
    if wrapping is None:
        return node.target, node.args, node.kwargs
    return node.args[wrapping], node.args[wrapping + 1 :], node.kwargs


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of a node by the names of its operator's schema; defaults are left out.

    Not `Node.normalized_arguments`: it renames `self`, fails for custom operators whose arguments
    have Python's keywords as names, and does not see an operator that checkpointing wraps.
    """
    op, args, kwargs = call_of(node)
    return {**dict(zip((a.name for a in schema(op).arguments), args, strict=False)), **kwargs}


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    op = call_of(node)[0] if node.op == "call_function" else None
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return not draws_nothing(op, (), _arguments(node))


def draws_nothing(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that can draw random numbers draws none in a call, as dropout by 0."""
    arguments = schema(op).arguments
    given: dict[str, Any] = {a.name: a.default_value for a in arguments}
    given |= dict(zip((a.name for a in arguments), args, strict=False)) | dict(kwargs)
    return any(given.get(name, "") == nothing for name, nothing in _DRAWS_NOTHING.items())


def generator_of(node: Node) -> Any:
    """The generator that a random node is given, or None: it draws from torch's default one."""
    return _arguments(node).get("generator") if is_random(node) else None


def attribute_of(node: Node) -> Any:
    """The attribute that a `get_attr` node names: a tensor, or a graph inside the graph."""
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


def bodies(node: Node) -> list[torch.fx.GraphModule]:
    """The graphs that a higher-order operator runs: branches of a cond, the body of a loop."""
    if not isinstance(node.target, HigherOrderOperator):
        return []
    attributes = [attribute_of(n) for n in node.all_input_nodes if n.op == "get_attr"]
    return [a for a in attributes if isinstance(a, torch.fx.GraphModule)]
