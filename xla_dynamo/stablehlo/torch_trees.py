"""torch's descriptions of nested inputs and outputs (`TreeSpec`) to trees without torch."""

import collections
from typing import Any

from xla_dynamo.stablehlo.trees import LEAF, Key, Tree
from xla_dynamo.torch_private import pytree


def tree_of(spec: Any) -> Tree:
    """The tree of a `TreeSpec`."""
    if spec.is_leaf():
        return LEAF
    items = tuple(map(tree_of, spec.children()))
    if spec.type is list:
        return Tree("list", items)
    if spec.type in (dict, collections.OrderedDict):
        return Tree("dict", items, tuple(spec.context))
    if spec.type is collections.defaultdict:
        return Tree("dict", items, tuple(spec.context[1]))
    if spec.type is collections.namedtuple:
        return Tree("namedtuple", items, tuple(spec.context._fields), spec.context.__name__)
    if issubclass(spec.type, tuple):  # also torch.return_types.topk
        return Tree("tuple", items)
    return Tree("object", items, _fields(spec), f"{spec.type.__module__}.{spec.type.__qualname__}")


def _fields(spec: Any) -> tuple[Key, ...]:
    """The names of the parts of an object of a class that torch was told how to flatten."""
    made = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    try:
        pairs, _ = pytree.tree_flatten_with_path(made, is_leaf=lambda x: x is not made)
    except ValueError:  # the class was registered without names
        return tuple(map(str, range(len(spec.children()))))
    keys = [path[0] for path, _ in pairs]
    return tuple(_name(key) for key in keys)


def _name(key: Any) -> Key:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
