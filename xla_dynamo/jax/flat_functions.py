"""Functions of JAX on flat lists of arrays, by key, and their derivatives and batches."""

import collections
import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xla_dynamo.jax.arrays import torch_dtype_of

# A graph that is traced has the name of a function alone, and may be lowered again at any time:
# these live as long as the process. Of others the latest stay, and those that a gradient is to be
# taken of, so that functions made anew for each call do not add up.
_MOST = 1024
_WIDE = [jnp.dtype(name) for name in ("int64", "uint64", "float64", "complex128")]
_latest: "collections.OrderedDict[Any, FlatFunction]" = collections.OrderedDict()
_traced: "dict[str, FlatFunction]" = {}
_by_key: "weakref.WeakValueDictionary[str, FlatFunction]" = weakref.WeakValueDictionary()
_numbers = itertools.count()
_lock = threading.Lock()


def register(fn: Callable[..., Any], is_narrow: bool = False) -> "FlatFunction":
    """The flat function of a function; one object has one, if it comes again before many others.

    Args:
        fn: of arrays.
        is_narrow: see `FlatFunction`.
    """
    with _lock:
        flat = _latest.pop(fn, None) or FlatFunction(fn, is_narrow=is_narrow)
        _latest[fn] = flat
        if len(_latest) > _MOST:
            _latest.popitem(last=False)
    return flat


def find(key: str) -> "FlatFunction":
    """The function of a key."""
    return _by_key[key]


def keep(key: str) -> "FlatFunction":
    """The function of a key, which a graph may have from now on: it stays."""
    return _traced.setdefault(key, _by_key[key])


class FlatFunction:
    """A function of arrays whose results are flattened; compared by identity.

    The same derivative or batch of a function is the same object. Whoever traces one enables JAX's
    64-bit dtypes, which torch has too.

    A narrow function is traced without them all the same, unless an argument has 64 bits: kernels
    of Pallas are written for that.

    Attributes:
        name: of the function, for its programs.
        key: its name with a number, which no other has.
        jitted: the function under `jax.jit`.
    """

    def __init__(
        self, fn: Callable[..., Any], name: str | None = None, is_narrow: bool = False
    ) -> None:
        """Take a function that returns arrays in tuples, lists and dicts, and whether it is narrow.

        The derivatives and batches of a narrow function are narrow.
        """
        self.name = self.__name__ = name or getattr(fn, "__name__", None) or type(fn).__name__
        self._fn, self.key = fn, f"{self.name}_{next(_numbers)}"
        self._is_narrow = is_narrow
        self._trees: dict[Any, Any] = {}
        self.jitted = jax.jit(self)
        self.types_of_results = functools.lru_cache(maxsize=1024)(self._types_of_results)
        self.vjp = functools.cache(self._vjp)
        self.vmap = functools.cache(self._vmap)
        _by_key[self.key] = self

    def __call__(self, *arrays: jax.Array) -> list[jax.Array]:
        """Call the function, and note the structure of what it returns."""
        with self._width(arrays):
            leaves, tree = jax.tree_util.tree_flatten(self._fn(*arrays))
            self._trees[tuple((str(x.dtype), tuple(x.shape)) for x in arrays)] = tree
            return [self._as_array(x) for x in leaves]

    def _width(self, arrays: Sequence[jax.Array]) -> contextlib.AbstractContextManager[None]:
        if not self._is_narrow or any(x.dtype in _WIDE for x in arrays):
            return contextlib.nullcontext()
        return jax.enable_x64(False)

    def _as_array(self, x: Any) -> jax.Array:
        if isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            array = jnp.asarray(x)
            torch_dtype_of(array)  # raises, where it is known what makes it
            return array
        raise TypeError(f"{self.name} returns a {type(x).__name__}, which is no array")

    def number_of_forms(self) -> int:
        """For how many dtypes and shapes of its arguments the function was traced."""
        return len(self._trees)

    def tree_of_results(self, kinds: Sequence[tuple[str, tuple[int, ...]]]) -> Any:
        """JAX's structure of the results for arguments of these dtypes, by name, and shapes.

        The function must have been called with such.
        """
        return self._trees[tuple(kinds)]

    def _types_of_results(self, types: tuple[tuple[tuple[int, ...], str], ...]) -> Any:
        """The shape and dtype of each result for arguments of these shapes and dtypes."""
        arguments = [jax.ShapeDtypeStruct(shape, jnp.dtype(name)) for shape, name in types]
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return jax.eval_shape(self.jitted, *arguments)

    def _vjp(self, wrt: tuple[int, ...], count: int) -> "FlatFunction":
        """Takes `count` arguments, then cotangents of those results that can have them.

        Gives the cotangents of the arguments of the numbers `wrt`.
        """

        def pull(*arrays: jax.Array) -> list[jax.Array]:
            given, cotangents = list(arrays[:count]), list(arrays[count:])

            def differentiable(*some: jax.Array) -> list[jax.Array]:
                for i, x in zip(wrt, some, strict=True):
                    given[i] = x
                return [x for x in self(*given) if jnp.issubdtype(x.dtype, jnp.inexact)]

            return list(jax.vjp(differentiable, *(given[i] for i in wrt))[1](cotangents))

        return FlatFunction(pull, f"{self.name}_vjp", self._is_narrow)

    def _vmap(self, dims: tuple[int | None, ...]) -> "FlatFunction":
        """Takes batches in these dimensions, and gives batches in the first."""
        mapped = jax.vmap(self, in_axes=dims)
        return FlatFunction(mapped, f"{self.name}_batched", self._is_narrow)
