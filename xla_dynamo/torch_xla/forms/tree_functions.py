"""Names of `torch_xla.experimental.pytreeify`: functions of autograd that take trees of tensors."""

from typing import Any

import torch

from xla_dynamo.torch_private import pytree


def pytreeify(cls: Any) -> Any:
    """Let an autograd function take trees of tensors, and return one.

    Args:
        cls: a `torch.autograd.Function`, which is changed. Its `forward` takes trees. Its
            `backward` takes a tree like the result, and returns a tuple of trees like the
            arguments.

    Raises:
        TypeError: it is none.
        RuntimeError, from the backward: it returns trees of another structure.
    """
    known: Any = torch.autograd.Function
    if not issubclass(cls, known):
        raise TypeError(f"pytreeify decorates a torch.autograd.Function, and not {cls!r}")
    forward, backward = cls.forward, cls.backward

    class Flat(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Any, made: list[Any], *leaves: Any) -> Any:
            result = forward(ctx, *pytree.tree_unflatten(leaves, given))
            flat, structure = pytree.tree_flatten(result)
            ctx.xla_structures = given, structure
            made.append(structure)
            return tuple(flat)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            given, made = ctx.xla_structures
            tree = pytree.tree_unflatten(gradients, made)
            found = backward(ctx, *(tree if isinstance(tree, tuple) else (tree,)))
            flat, structure = pytree.tree_flatten(found)
            if structure != given:
                raise RuntimeError(
                    f"backward of {cls.__name__} returned {structure}, and its arguments are "
                    f"{given}"
                )
            return (None, None, *flat)

    def apply(*args: Any) -> Any:
        leaves, given = pytree.tree_flatten(args)
        made: list[Any] = []
        flat = Flat.apply(given, made, *leaves)
        return pytree.tree_unflatten(flat, made[0])

    cls.apply = staticmethod(apply)
    return cls
