"""A model and the form of its arguments to a function of flat tensors, and back to its results."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import torch

from xla_dynamo.jax.torch_functions import Function, Tensors, TensorType


class TracedModel:
    """A model at one set of types and other arguments.

    Attributes:
        function: takes the model's parameters and buffers, then its tensor arguments; gives the
            tensors among its results, then the buffers that it changes.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        names: Sequence[str],
        copied: Collection[str],
        types: Sequence[TensorType],
        leaves: Sequence[Any],
        tree: Any,
    ) -> None:
        """Trace a model.

        Args:
            model: a module or a function.
            names: of the parameters and buffers.
            copied: those of the names that the model may write into: its buffers.
            types: of the tensors behind the names, and of those among the arguments.
            leaves: of the arguments `(args, kwargs)`: objects with a `value`, None for a tensor.
            tree: JAX's structure of the arguments.
        """
        self._model, self._names, self._copied = model, names, copied
        self._leaves, self._tree = leaves, tree
        self._results: list[Any] = []
        self._result_tree: Any = None
        self._changed = [name for name in names if name in copied]
        self.function = Function(getattr(model, "__name__", type(model).__name__), types, self._run)
        self._leave_out_unchanged()

    def restore(self, arrays: Sequence[jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        """The model's results, and the buffers that it changed, of the function's results."""
        given = iter(arrays)
        leaves = [next(given) if x is None else x.value for x in self._results]
        results = jax.tree_util.tree_unflatten(self._result_tree, leaves)
        return results, dict(zip(self._changed, given, strict=True))

    def _leave_out_unchanged(self) -> None:
        """Keep only those buffers among the function's results that it changes."""
        sources = self.function.sources()
        first = len(sources) - len(self._changed)
        changed = [
            number
            for number, name in enumerate(self._changed)
            if sources[first + number] != self._names.index(name)
        ]
        self.function.keep([*range(first), *(first + number for number in changed)])
        self._changed = [self._changed[number] for number in changed]

    def _run(self, *tensors: torch.Tensor) -> Tensors:
        given = iter(tensors)
        state = {k: next(given).clone() if k in self._copied else next(given) for k in self._names}
        # Nor does it write into its caller's arrays.
        leaves = [next(given).clone() if x is None else x.value for x in self._leaves]
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, leaves)
        if isinstance(self._model, torch.nn.Module):
            results = torch.func.functional_call(self._model, state, args, kwargs)
        else:
            results = self._model(*args, **kwargs)
        leaves, self._result_tree = jax.tree_util.tree_flatten(_plain(results))
        self._results = [None if isinstance(x, torch.Tensor) else _Leaf(x) for x in leaves]
        found = [x for x in leaves if isinstance(x, torch.Tensor)]
        return (*found, *(state[name] for name in self._changed))


class _Leaf:
    """A result that is no tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _plain(results: Any) -> Any:
    """Results with a dict in the place of other mappings, which JAX does not know."""
    if isinstance(results, Mapping):
        return {name: _plain(value) for name, value in results.items()}
    if isinstance(results, tuple) and hasattr(results, "_fields"):
        return type(results)(*map(_plain, results))
    if isinstance(results, list | tuple):
        return type(results)(map(_plain, results))
    if results is None or isinstance(results, torch.Tensor | bool | int | float | complex | str):
        return results
    raise TypeError(
        f"the model returns a {type(results).__name__}, which is no tensor, number, tuple, list or "
        "dict: leave it out of its results (for a cache of transformers: use_cache=False)"
    )
