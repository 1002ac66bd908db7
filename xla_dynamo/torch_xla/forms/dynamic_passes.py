"""Passes of `unbounded_dynamism_export` over graphs of exported programs with one open size.

Our lowering needs none of them: they are for whoever prepares a program for another one.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from xla_dynamo.torch_xla.forms import dynamic_sizes
from xla_dynamo.torch_xla.forms.exports import call_function

assert dynamic_sizes  # whose import makes operators
aten = torch.ops.aten
Graph: TypeAlias = torch.fx.GraphModule
Node: TypeAlias = torch.fx.Node


def _calls(gm: Graph, *targets: Any) -> list[Node]:
    """The calls of operators, in their order."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and n.target in targets]


def _open_dims(node: Any) -> list[int]:
    """The dimensions of a node's tensor whose size is open."""
    return [d for d, n in enumerate(node.meta["val"].shape) if not isinstance(n, int)]


def _sizes(gm: Graph, node: Any) -> list[Any]:
    """The sizes of a node's tensor: numbers, and new nodes for open ones."""
    return [
        n if isinstance(n, int) else call_function(gm.graph, aten.sym_size.int, (node, d))
        for d, n in enumerate(node.meta["val"].shape)
    ]


def _one_open_dim(node: Any, what: str, dim: int) -> None:
    """Raise ValueError unless one dimension is open, and not the one that is worked on."""
    dims = _open_dims(node)
    rank = node.meta["val"].dim()
    if len(dims) > 1 or dim % rank in dims:
        raise ValueError(
            f"{what}: the dimensions {dims} of {node} are open, and one may be that is not {dim}"
        )


def decompose_dynamic_shape_select(gm: Graph) -> None:
    """Let `select` of a tensor with an open size be `slice` and `view`.

    Raises:
        ValueError: several sizes are open, or the one of the selected dimension.
    """
    for node in _calls(gm, aten.select.int):
        source, dim, index = node.args
        if not _open_dims(source):
            continue
        _one_open_dim(source, "select", dim)
        with gm.graph.inserting_before(node):
            part = call_function(gm.graph, aten.slice.Tensor, (source, dim, index, index + 1, 1))
            sizes = _sizes(gm, source)
            del sizes[dim]
            made = call_function(gm.graph, aten.view.default, (part, sizes))
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)


def decompose_split_with_sizes(gm: Graph) -> None:
    """Let each part of `split_with_sizes` of a tensor with an open size be a `slice`.

    Raises:
        ValueError: several sizes are open, or the one of the split dimension.
    """
    for node in _calls(gm, aten.split_with_sizes.default):
        source, sizes, *rest = node.args
        if not _open_dims(source):
            continue
        dim = rest[0] if rest else 0
        _one_open_dim(source, "split_with_sizes", dim)
        for user in list(node.users):
            start = sum(sizes[: user.args[1]])
            with gm.graph.inserting_before(user):
                bounds = (source, dim, start, start + sizes[user.args[1]])
                part = call_function(gm.graph, aten.slice.Tensor, bounds)
            user.replace_all_uses_with(part)


def dynamic_unsqueeze_to_view(gm: Graph) -> None:
    """Let `unsqueeze` of a tensor with an open size be `view`."""
    for node in _calls(gm, aten.unsqueeze.default):
        source, dim = node.args
        if not _open_dims(source):
            continue
        with gm.graph.inserting_before(node):
            sizes = _sizes(gm, source)
            sizes.insert(dim % (len(sizes) + 1), 1)
            made = call_function(gm.graph, aten.view.default, (source, sizes))
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)


def flatten_embedding_indices_tensor(gm: Graph) -> None:
    """Let `embedding` take indices with an open size as one dimension, and shape its result."""
    for node in _calls(gm, aten.embedding.default):
        weight, indices, *rest = node.args
        if not _open_dims(indices):
            continue
        _one_open_dim(indices, "embedding", _closed_dim(indices))
        graph = gm.graph
        with graph.inserting_before(node):
            sizes = _sizes(gm, indices)
            (size,) = [n for n in sizes if not isinstance(n, int)]
            factor = 1
            for n in sizes:
                factor *= n if isinstance(n, int) else 1
            count = call_function(graph, operator.mul, (size, factor))
            flat = call_function(graph, aten.reshape.default, (indices, [count]))
            found = call_function(graph, aten.embedding.default, (weight, flat, *rest))
            shape = [*sizes, weight.meta["val"].shape[-1]]
            made = call_function(graph, aten.reshape.default, (found, shape))
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _closed_dim(node: Any) -> int:
    dims = _open_dims(node)
    return next((d for d in range(node.meta["val"].dim()) if d not in dims), dims[0])


def _source_of(size: Any) -> tuple[Any, int, int]:
    """The tensor and the dimension that an open size is of, and a factor.

    Raises:
        ValueError: it is neither a size nor a size times a number.
    """
    factor = 1
    if size.target is operator.mul:
        numbers = [a for a in size.args if isinstance(a, int)]
        nodes = [a for a in size.args if not isinstance(a, int)]
        if len(numbers) == 1:
            factor, size = numbers[0], nodes[0]
    if size.target is not aten.sym_size.int:
        raise ValueError(f"{size} is neither a size of a tensor nor one times a number")
    return size.args[0], size.args[1], factor


def _open_size(node: Node, dims: Any) -> tuple[int, Any] | None:
    """The number and the node of the one open size that an operator is given.

    Raises:
        ValueError: there are several.
    """
    found = [(i, n) for i, n in enumerate(dims) if isinstance(n, torch.fx.Node)]
    if len(found) > 1:
        raise ValueError(f"{node} is given {len(found)} open sizes, and may have one")
    return found[0] if found else None


def replace_dynamic_expand_with_xla_op(gm: Graph) -> None:
    """Let `expand` to an open size be `xla.dynamic_expand`, which is told whose size it is.

    Raises:
        ValueError: several sizes are open, or it is no size of a tensor.
    """
    for node in _calls(gm, aten.expand.default):
        found = _open_size(node, node.args[1])
        if found is not None:
            source, dim, _ = _source_of(found[1])
            node.args = (*node.args[:2], source, dim, found[0])
            node.target = torch.ops.xla.dynamic_expand


def replace_dynamic_view_with_xla_op(gm: Graph) -> None:
    """Let `view` and `reshape` to an open size be `xla.dynamic_view`, as `expand`.

    Raises:
        ValueError: several sizes are open, or it is no size of a tensor, or one times a number.
    """
    views = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
    packets = (aten.reshape, aten.view, aten._unsafe_view)
    for node in _calls(gm, *views, *packets):
        found = _open_size(node, node.args[1])
        if found is not None:
            source, dim, factor = _source_of(found[1])
            node.args = (*node.args[:2], source, dim, found[0], factor)
            node.target = torch.ops.xla.dynamic_view


# --- norms --------------------------------------------------------------------------------------


def native_layer_norm_impl(
    input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any
) -> Any:
    """The first result of `native_layer_norm` over the last dimension, without views."""
    return _normalized(input, eps) * weight + bias


def native_group_norm_impl(input: Any, weight: Any, bias: Any, *sizes_and_eps: Any) -> Any:
    """The first result of `native_group_norm` of as many groups as channels, without views.

    Behind the tensors come torch's N, C, HxW, group and eps.
    """
    return _normalized(input, sizes_and_eps[-1]) * weight.unsqueeze(1) + bias.unsqueeze(1)


def _normalized(input: Any, eps: Any) -> Any:
    mean = torch.mean(input, -1, keepdim=True)
    variance = torch.var(input, -1, keepdim=True, correction=0)
    return (input - mean) * torch.rsqrt(variance + eps)


def native_layer_norm_pattern(x: Any, dim: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """The first result of `native_layer_norm`."""
    return aten.native_layer_norm.default(x, dim, weight, bias, eps)[0]


def native_group_norm_pattern(x: Any, weight: Any, bias: Any, *sizes_and_eps: Any) -> Any:
    """The first result of `native_group_norm`."""
    return aten.native_group_norm.default(x, weight, bias, *sizes_and_eps)[0]


def decompose_dynamic_native_layer_norm(gm: Graph) -> None:
    """Let `native_layer_norm` over the last dimension be `native_layer_norm_impl`."""
    op = aten.native_layer_norm.default
    _replace(gm, op, native_layer_norm_impl, lambda args: len(args[1]) == 1)


def decompose_dynamic_native_group_norm(gm: Graph) -> None:
    """Let `native_group_norm` of as many groups as channels be `native_group_norm_impl`."""
    op = aten.native_group_norm.default
    _replace(gm, op, native_group_norm_impl, lambda args: args[4] == args[6])


def _replace(gm: Graph, op: Any, build: Callable[..., Any], fits: Callable[[Any], bool]) -> None:
    """Replace calls of an operator of which the first result alone is read."""
    for node in _calls(gm, op):
        users = list(node.users)
        if not fits(node.args) or any(user.args[1] != 0 and user.users for user in users):
            continue
        with gm.graph.inserting_before(node):
            tracer = torch.fx.proxy.GraphAppendingTracer(gm.graph)
            as_proxy = functools.partial(torch.fx.Proxy, tracer=tracer)
            given: Any = torch.fx.map_arg(node.args, as_proxy)
            made = build(*given).node
        for user in users:
            user.replace_all_uses_with(made)
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
