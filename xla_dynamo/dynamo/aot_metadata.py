"""Read what AOTAutograd knows about the graph that it is compiling, beyond the graph itself.

All of this is private to torch (2.11 to 2.13), and only this file reads it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.nodes import writes_input
from xla_dynamo.graphs.output_views import views_under
from xla_dynamo.programs.program import Strides
from xla_dynamo.torch_private import OutputType, TracingContext

Node: TypeAlias = torch.fx.Node
# What an inference graph gives as it is: tensors, and sizes.
_PLAIN = torch.Tensor | torch.SymInt | int


def _metadata() -> Any:
    return getattr(TracingContext.try_get(), "fw_metadata", None)


def static_input_indices() -> frozenset[int]:
    """Which inputs of the graph that AOTAutograd is compiling are parameters and buffers."""
    return frozenset(getattr(_metadata(), "static_input_indices", None) or ())


def changed_inputs(gm: torch.fx.GraphModule, counts: Sequence[int]) -> frozenset[int]:
    """Which inputs of Dynamo's graph the graph that AOTAutograd is compiling of it changes.

    All, if it changes one and AOTAutograd has others: inputs that overlap have become one, or
    wrappers have brought sizes.

    Args:
        gm: AOTAutograd's graph, to which wrappers come taken apart.
        counts: how many inputs there each input of Dynamo's is.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    owners = [i for i, count in enumerate(counts) for _ in range(count)]
    written = {n.args[0] for n in gm.graph.nodes if writes_input(n)}
    metadata = _metadata()
    outside = getattr(metadata, "mutated_inp_runtime_indices", ())
    behind = {i for i in outside if metadata.input_info[i].mutates_data}
    within = {i for i, node in enumerate(inputs) if node in written}
    if not behind and not within:
        return frozenset()
    if len(inputs) != len(owners) or (behind and len(owners) != len(counts)):
        return frozenset(range(len(counts)))
    return frozenset(owners[i] for i in within | behind)


def adds_nothing() -> bool:
    """Whether AOTAutograd's call of the inference graph that it is compiling is the graph's own.

    It does more where inputs change, results are views, wrappers are taken apart, or guards are to
    hold that Dynamo does not know. It adds tokens where effects have an order (`tokens`).
    """
    context, metadata = TracingContext.try_get(), _metadata()
    if metadata is None or context.fakify_first_call:
        return False
    return not (
        any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
        or any(info.output_type is not OutputType.non_alias for info in metadata.output_info)
        or any(not issubclass(info.raw_type, _PLAIN) for info in metadata.output_info)
        or any(info.requires_grad for info in metadata.output_info)
        or any(type(m).__name__ != "PlainTensorMeta" for m in metadata.subclass_inp_meta)
        or any(type(m).__name__ != "PlainTensorMeta" for m in metadata.subclass_fw_graph_out_meta)
        or metadata.num_intermediate_bases
        or metadata.grad_enabled_mutation is not None
        or metadata.num_graphsafe_rng_states
        or context.guards_context.aotautograd_guards
    )


def tokens() -> int:
    """How many tokens of effects come before the inputs and the results of the present graph.

    AOTAutograd passes None for each, and drops what comes back.
    """
    return len(getattr(_metadata(), "tokens", ()))


def results_for_backward(gm: torch.fx.GraphModule) -> frozenset[int]:
    """Which results of the forward graph that AOTAutograd is compiling its backward alone reads."""
    saved = getattr(_metadata(), "tensors_saved_for_backwards_slice", slice(0))
    return frozenset(range(_number_of_results(gm))[saved])


def report_strides(gm: torch.fx.GraphModule, chosen: Strides) -> None:
    """Tell AOTAutograd in which strides some results of a forward graph come."""
    context = TracingContext.try_get()
    strides = getattr(context, "output_strides", None)
    if strides is not None and chosen:
        strides.extend(chosen.get(index) for index in range(_number_of_results(gm)))


def _number_of_results(gm: torch.fx.GraphModule) -> int:
    return len(gm.graph.output_node().args[0])  # type: ignore[arg-type]


def restore_views_of_inputs(gm: torch.fx.GraphModule) -> frozenset[int]:
    """Make results that eager gives as views of inputs views of the inputs themselves.

    Eager's `y = x[1:]; y.mul_(2); return y` gives a view of x. The functional graph gives one of
    x's new value, with strides and a storage offset of its own; but from the tensor that stands
    for it, AOTAutograd reads off where in x the view lies, when sizes are dynamic.

    Args:
        gm: a forward or inference graph, while AOTAutograd is compiling it.

    Returns:
        Which results are such views.
    """
    output = gm.graph.output_node()
    before = list(output.args[0])
    results = list(before)
    found = _views_of_inputs(gm, before)
    for index, (target, value) in found.items():
        chain = list(views_under(before[index]))
        below = [view.args[0] for view in chain]
        if value is not target and value in below:
            views = reversed(chain[: below.index(value) + 1])
            results[index] = _replayed(gm, views, value, target)
    output.args = (tuple(results),)
    for node in before:
        _erase_unused(gm, node)
    return frozenset(found)


def strides_of_saved(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[int, tuple[int, ...]]:
    """The strides of a backward graph's inputs, by number, that come in others than were traced."""
    found = {}
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        given, traced = inputs[index], node.meta["val"]
        if isinstance(given, torch.Tensor) and given is not traced:
            strides = given.stride()
            if all(type(n) is int for n in strides) and strides != traced.stride():
                found[index] = tuple(strides)
    return found


def _views_of_inputs(gm: torch.fx.GraphModule, results: list[Any]) -> dict[int, tuple[Node, Node]]:
    """By its number, each result that is a view in eager: the input, and its value at the end."""
    metadata = _metadata()
    if metadata is None:
        return {}
    first = len(metadata.tokens)  # of effects: they come first, in inputs and results
    inputs = gm.graph.find_nodes(op="placeholder")[first:]
    written: dict[Node, Any] = {n.args[0]: n.args[1] for n in gm.graph.nodes if writes_input(n)}
    outside = metadata.mutated_inp_runtime_indices
    if len(results) < first + len(outside) + len(metadata.output_info):
        return {}  # torch 2.13 leaves out a wrapper's size that it finds constant, and then fails
    written |= {inputs[index]: results[first + i] for i, index in enumerate(outside)}
    return {
        index: (target := inputs[info.base_idx], written.get(target, target))
        for index, info in enumerate(metadata.output_info, first + len(outside))
        if info.output_type is OutputType.alias_of_input
    }


def _replayed(gm: torch.fx.GraphModule, views: Iterator[Node], value: Node, target: Node) -> Node:
    """The last of some views of a value, made once more of a target at the graph's end."""
    env = {value: target}
    node = target
    with gm.graph.inserting_before(gm.graph.output_node()):
        for view in views:
            node = env[view] = gm.graph.node_copy(view, lambda n: env.get(n, n))
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with torch.no_grad():
                node.meta["val"] = node.target(*args, **kwargs)
    return node


def _erase_unused(gm: torch.fx.GraphModule, node: Any) -> None:
    while isinstance(node, torch.fx.Node) and not node.users and node.op == "call_function":
        below = node.args[0]
        gm.graph.erase_node(node)
        node = below
