"""A model of torch to a pure function of JAX and its parameters."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_dynamo.jax.arrays import narrowed, to_array, torch_dtype_of
from xla_dynamo.jax.primitive import torch_call
from xla_dynamo.jax.torch_functions import TensorType
from xla_dynamo.jax.traced_model import TracedModel

Arrays: TypeAlias = Mapping[str, jax.Array]


def to_jax(model: Callable[..., Any]) -> tuple["JaxFunction", dict[str, jax.Array]]:
    """Make a pure function of JAX of a model of torch.

        function, params = xla_dynamo.jax.to_jax(model)
        y = jax.jit(function)(params, x)
        gradients = jax.grad(lambda params: loss(function(params, x)))(params)

    `jit`, `grad` (also of gradients), `jvp`, `vmap`, shardings and `shard_map` work on it: the
    model's operators are part of JAX's program.

    Args:
        model: a module, or a function of tensors.

    Returns:
        The function, which is called with the parameters and then as the model is, with arrays for
        tensors (see `JaxFunction`); and copies of the parameters of floating-point or complex
        dtypes, by their names in `model.named_parameters()`. A function's are empty.

    Raises:
        TypeError: the model cannot be called.
    """
    if not callable(model):
        raise TypeError(f"to_jax needs a module or a function, not {type(model).__name__}")
    function = JaxFunction(model)
    return function, {k: to_array(t) for k, t in function.parameters.items()}


class JaxFunction:
    """What `to_jax` makes of a model: `function(params, *args, rng=None, **kwargs)`.

    Arguments are those of the model: arrays take the place of tensors, in tuples, lists and dicts
    too; of Python's numbers, strings and other objects each value is traced by itself. Where JAX is
    not set to `jax_enable_x64`, int32 arrays become int64 tensors, as torch has indices. Results
    have the structure of the model's; a dict takes the place of other mappings, such as the outputs
    of transformers' models.

    The model is traced once for each set of shapes, in the mode, `train()` or `eval()`, that it has
    then.

    Attributes:
        parameters: the model's tensors behind `params`, by name.
        buffers: copies of the model's buffers, by name: what a call reads that is given none.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        """Copy the model's buffers."""
        self._model = model
        self.parameters: dict[str, torch.Tensor] = {}
        rest: dict[str, torch.Tensor] = {}
        if isinstance(model, torch.nn.Module):
            for name, tensor in model.named_parameters():
                differentiable = tensor.is_floating_point() or tensor.is_complex()
                (self.parameters if differentiable else rest)[name] = tensor.detach()
            rest |= dict(model.named_buffers())
        self._rest, self._tensors = rest, self.parameters | rest
        self.buffers = {name: to_array(tensor) for name, tensor in rest.items()}
        self._traced: dict[Hashable, TracedModel] = {}

    def __call__(
        self, params: Arrays, *args: Any, rng: jax.Array | None = None, **kwargs: Any
    ) -> Any:
        """Call the model.

        Args:
            params: the parameters, by name.
            args: the model's arguments.
            rng: a key, as `jax.random.key` makes it, if the model draws random numbers.
            kwargs: the model's arguments by name.

        Raises:
            ValueError: parameters are missing, have other names or shapes, or `rng` is; or the
                model changes its buffers, as batch norm does in training: see `with_buffers`.
            UnsupportedOperator: while JAX compiles; the model has an operator without a rule.
        """
        results, changed = self._call(params, self.buffers, args, rng, kwargs)
        if changed:
            raise ValueError(
                f"the model changes its buffers {sorted(changed)[:3]}, which a pure function "
                "cannot: call function.with_buffers(params, buffers, ...), which returns the new "
                "ones (function.buffers are the first), or model.eval() before"
            )
        return results

    def with_buffers(
        self,
        params: Arrays,
        buffers: Arrays,
        *args: Any,
        rng: jax.Array | None = None,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Call a model that may change its buffers, such as batch norm's running statistics.

        Returns:
            What the model returns, and all buffers as they are then.

        Raises:
            ValueError, UnsupportedOperator: as for a call.
        """
        results, changed = self._call(params, buffers, args, rng, kwargs)
        return results, {**buffers, **changed}

    def _call(
        self, params: Arrays, buffers: Arrays, args: Any, rng: jax.Array | None, kwargs: Any
    ) -> tuple[Any, dict[str, jax.Array]]:
        _check("parameters", params, self.parameters)
        _check("buffers", buffers, self._rest)
        given = {**params, **buffers}
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        leaves = [to_array(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        arrays = [x for x in leaves if _is_array(x)]
        types = [_type_like(given[name], tensor) for name, tensor in self._tensors.items()]
        types += map(_type_of, arrays)
        rest = tuple(None if _is_array(x) else _Constant(x) for x in leaves)
        key = (tree, rest, tuple(types), self._modes(), torch.get_default_dtype())
        if key not in self._traced:
            names = list(self._tensors)
            copied = set(self._rest)
            self._traced[key] = TracedModel(self._model, names, copied, types, rest, tree)
        traced = self._traced[key]
        operands = [*(given[name] for name in self._tensors), *arrays]
        if traced.function.takes_seed:
            operands.insert(0, _seed(rng))
        return traced.restore(torch_call(traced.function, operands))

    def _modes(self) -> tuple[bool, ...]:
        if not isinstance(self._model, torch.nn.Module):
            return ()
        return tuple(module.training for module in self._model.modules())


class _Constant:
    """An argument that is no array, compared by its type and value."""

    def __init__(self, value: Any) -> None:
        self.value = value
        # -0.0 is not 0.0, and a NaN equals itself.
        self._key = (type(value), repr(value) if isinstance(value, float | complex) else value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def _check(what: str, given: Arrays, wanted: Mapping[str, torch.Tensor]) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"the {what} are a dict of arrays by name, not {type(given).__name__}")
    for missing in wanted.keys() - given.keys():
        raise ValueError(f"the {what} have no {missing!r}: pass all that to_jax gave")
    for unknown in given.keys() - wanted.keys():
        raise ValueError(f"the model has no {unknown!r} among its {what}")
    for name, tensor in wanted.items():
        if tuple(given[name].shape) != tuple(tensor.shape):
            shapes = f"{tuple(given[name].shape)} where the model has {tuple(tensor.shape)}"
            raise ValueError(f"{name!r} among the {what} has the shape {shapes}")


def _type_like(array: jax.Array, tensor: torch.Tensor) -> TensorType:
    """The type in which an array enters for a tensor: of 64 bits if JAX has narrowed it."""
    is_as_before = array.dtype == narrowed(tensor.dtype)
    return TensorType(tuple(array.shape), tensor.dtype if is_as_before else torch_dtype_of(array))


def _type_of(array: jax.Array | np.ndarray) -> TensorType:
    dtype = torch_dtype_of(array)
    if dtype is torch.int32 and not jax.config.jax_enable_x64:
        dtype = torch.int64
    return TensorType(tuple(array.shape), dtype)


def _seed(rng: jax.Array | None) -> jax.Array:
    if rng is None:
        raise ValueError(
            "the model draws random numbers: pass a key, as in "
            "function(params, x, rng=jax.random.key(0)), or call model.eval() before"
        )
    return jax.random.bits(rng, (2,), jnp.uint32)
