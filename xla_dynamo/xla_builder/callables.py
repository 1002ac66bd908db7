"""Functions of trees of tensors that are specialized, and kept, for each form of their arguments.

`XlaCallable` is for functions of `Op`s, `JaxCallable` and `call_jax` for functions of JAX.
"""

import abc
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch

from xla_dynamo.jax.call_jax import call_by_key
from xla_dynamo.jax.call_jax import call_jax as call_flat
from xla_dynamo.jax.flat_functions import FlatFunction, register
from xla_dynamo.lowerings.builders.dtypes import dtype_name
from xla_dynamo.runtime.jaxlib_private import interpret_pallas_on_cpu
from xla_dynamo.torch_private import pytree
from xla_dynamo.xla_builder.op import Op, create_computation
from xla_dynamo.xla_builder.shapes import tensor_shape
from xla_dynamo.xla_builder.user_computation import xla_computation_as_func

Function = Callable[..., Any]
Flat = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class _Place:
    """Stands for a tensor among arguments."""


_PLACE = _Place()


class FlattenedInputFunc:
    """A function of trees as one of flat tensors: `preprocess`, `flat_call`, `postprocess`.

    Attributes:
        orig_func: the function.
        non_tensors: the leaves of the last arguments, with a place for each tensor.
        in_spec, out_spec: how the last arguments and results are nested.
    """

    def __init__(self, orig_func: Function) -> None:
        """Take the function."""
        self.orig_func = orig_func
        self.non_tensors: tuple[Any, ...] = ()
        self.in_spec: Any = None
        self.out_spec: Any = None

    def preprocess(self, args: Any, kwargs: dict[str, Any] | None = None) -> tuple[Any, ...]:
        """The tensors among arguments."""
        leaves, self.in_spec = self.flatten((args, kwargs or {}))
        self.non_tensors = tuple(_PLACE if isinstance(x, torch.Tensor) else x for x in leaves)
        return tuple(x for x in leaves if isinstance(x, torch.Tensor))

    def flat_call(self, flat_input: Sequence[Any]) -> list[Any]:
        """Call the function with something for each tensor of the arguments that came last.

        Raises:
            RuntimeError: none came.
        """
        if self.in_spec is None:
            raise RuntimeError(
                "flat_call comes after preprocess, which tells how inputs are nested"
            )
        given = iter(flat_input)
        leaves = [next(given) if x is _PLACE else x for x in self.non_tensors]
        args, kwargs = self.unflatten(leaves, self.in_spec)
        flat, self.out_spec = self.flatten(self.orig_func(*args, **kwargs))
        return list(flat)

    def postprocess(self, res_flattened: Sequence[Any]) -> Any:
        """Results as the function nested them when it was called last.

        Raises:
            RuntimeError: it was not called.
        """
        if self.out_spec is None:
            raise RuntimeError("postprocess comes after flat_call, which tells how results nest")
        return self.unflatten(list(res_flattened), self.out_spec)

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """Leaves, and how they are nested."""
        return pytree.tree_flatten(inputs)

    def unflatten(self, flattened: list[Any], spec: Any) -> Any:
        """Leaves nested again."""
        return pytree.tree_unflatten(flattened, spec)


class JaxFlattenedInputFunc(FlattenedInputFunc):
    """The same of a function of JAX: trees are JAX's, and dtypes among arguments become JAX's."""

    def preprocess(self, args: Any, kwargs: dict[str, Any] | None = None) -> tuple[Any, ...]:
        """The tensors among arguments."""
        tensors = super().preprocess(args, kwargs)
        self.non_tensors = tuple(map(_of_jax, self.non_tensors))
        return tensors

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """Leaves, and how they are nested."""
        return jax.tree.flatten(inputs)

    def unflatten(self, flattened: list[Any], spec: Any) -> Any:
        """Leaves nested again."""
        return jax.tree.unflatten(spec, flattened)


def _of_jax(value: Any) -> Any:
    return jax.numpy.dtype(dtype_name(value)) if isinstance(value, torch.dtype) else value


class CompiledCallableWithCache(abc.ABC):
    """A function that is specialized for each form of its arguments: `specialize` says how."""

    def __init__(self, flat_input_func: FlattenedInputFunc) -> None:
        """Take the function."""
        self._cache: dict[Any, tuple[Flat, Any]] = {}
        self._flat_input_func = flat_input_func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        flat = self._flat_input_func
        tensors = flat.preprocess(args, kwargs)
        forms = tuple((x.shape, x.dtype) for x in tensors)
        key = (forms, flat.non_tensors, flat.in_spec)
        if key not in self._cache:
            call = self.specialize(tensors)
            results = call(tensors)
            self._cache[key] = (call, flat.out_spec)
        else:
            call, flat.out_spec = self._cache[key]
            results = call(tensors)
        return flat.postprocess(results)

    @abc.abstractmethod
    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Flat:
        """A function of flat tensors of these forms; it is called once before others are made."""


class XlaCallable(CompiledCallableWithCache):
    """A function of `Op`s that is called with tensors; see `op_registry.register`, too."""

    def __init__(self, xla_func: Function) -> None:
        """Take the function."""
        super().__init__(FlattenedInputFunc(xla_func))

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Flat:
        """The function's computation."""
        shapes = tensor_shape(list(sample_flat_args))
        flat = self._flat_input_func.flat_call
        name = getattr(self._flat_input_func.orig_func, "__name__", "computation")
        made = create_computation(name, lambda *given: Op.tuple(flat(given)), shapes)
        return xla_computation_as_func(made)


class JaxCallable(CompiledCallableWithCache):
    """A function of JAX that is called with tensors; gradients pass."""

    def __init__(self, jax_func: Function) -> None:
        """Take the function."""
        super().__init__(JaxFlattenedInputFunc(jax_func))

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Flat:
        """The function of the tensors alone."""
        # Of its own, since the function may be traced again when others have been specialized.
        flat = JaxFlattenedInputFunc(self._flat_input_func.orig_func)
        flat.non_tensors, flat.in_spec = (
            self._flat_input_func.non_tensors,
            self._flat_input_func.in_spec,
        )

        def call(*arrays: Any) -> list[Any]:
            made = flat.flat_call(arrays)
            self._flat_input_func.out_spec = flat.out_spec
            return made

        return lambda tensors: call_flat(call, *tensors)


# By a function, or what stands for it, by the arguments that are no tensors, and by their nesting.
# They live as long as the process, since functions of JAX that graphs have do.
KNOWN_FUNCTIONS: dict[Any, FlatFunction] = {}


def number_of_known_forms() -> int:
    """How many functions of JAX `call_jax` knows, each for so many forms of its arguments."""
    return sum(function.number_of_forms() for function in KNOWN_FUNCTIONS.values())


def call_jax(
    jax_func: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Any = None,
) -> Any:
    """Call a function of JAX on tensors among its arguments, in eager code or a compiled function.

    Gradients pass, and 64-bit dtypes are not narrowed: see `xla_dynamo.jax.call_jax`. Where no
    tensor has 64 bits, arrays that the function makes have 32, unless `jax_enable_x64` is set.
    Kernels of Pallas, which are for TPU and GPU, are interpreted on the CPU.

    Args:
        jax_func: a function of arrays that JAX can trace. Pass the same object at each call.
        args: its arguments: trees with tensors. Other leaves are constants, and must have hashes;
            arrays of NumPy are tensors.
        kwargs: its keyword arguments, alike.
        name: not used.
        override_hash: what stands for the function when it is made anew at each call, as a closure.

    Returns:
        What the function returns, with tensors for arrays; on the 'xla' device if there are no
        tensors among the arguments.
    """
    leaves: list[Any] = []
    form = _form_of((tuple(args), dict(kwargs or {})), leaves)
    leaves = [torch.as_tensor(x) if isinstance(x, np.ndarray) else x for x in leaves]
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    devices = [x.device for x in tensors if x.device.type != "cpu"] or [torch.device("cpu")]
    if tensors:
        tensors = [x.to(devices[0]) for x in tensors]
    constants = tuple(None if isinstance(x, torch.Tensor) else x for x in leaves)
    places = tuple(isinstance(x, torch.Tensor) for x in leaves)
    function = _key_of(jax_func, constants, places, form, override_hash)
    made = call_by_key(function, *tensors)
    return made if tensors else pytree.tree_map(lambda x: x.to("xla"), made)


# As tuples of texts, and not by torch's trees, which Dynamo does not hand on as constants.


def _form_of(value: Any, leaves: list[Any]) -> tuple[Any, ...]:
    """How a value is nested; its leaves are put into a list."""
    if isinstance(value, dict):
        return "dict", tuple(value), tuple(_form_of(value[key], leaves) for key in value)
    if type(value) in (list, tuple):
        return type(value).__name__, tuple(_form_of(one, leaves) for one in value)
    leaves.append(value)
    return ("leaf",)


def _nested(form: tuple[Any, ...], leaves: Iterator[Any]) -> Any:
    if form[0] == "leaf":
        return next(leaves)
    parts = [_nested(part, leaves) for part in form[-1]]
    if form[0] == "dict":
        return dict(zip(form[1], parts, strict=True))
    return parts if form[0] == "list" else tuple(parts)


@torch.compiler.assume_constant_result
def _key_of(
    jax_func: Function,
    constants: tuple[Any, ...],
    places: tuple[bool, ...],
    form: Any,
    override_hash: Any,
) -> str:
    """The key of the function of the tensors alone, in the places where they are."""
    kinds = tuple(map(type, constants))
    is_wide = jax.config.jax_enable_x64
    key = (override_hash or jax_func, constants, kinds, places, form, is_wide)
    if key not in KNOWN_FUNCTIONS:

        @functools.wraps(jax_func)
        def call(*arrays: Any) -> Any:
            given = iter(arrays)
            both = zip(constants, places, strict=True)
            leaves = (next(given) if is_tensor else _of_jax(x) for x, is_tensor in both)
            args, kwargs = _nested(form, leaves)
            made = jax_func(*args, **kwargs)
            if "jax._src.pallas.pallas_call" in sys.modules:  # it may have called a kernel
                interpret_pallas_on_cpu()
            return made

        # What it makes itself has 32 bits, as JAX's users know it.
        KNOWN_FUNCTIONS[key] = register(call, is_narrow=not is_wide)
    return KNOWN_FUNCTIONS[key].key
