"""Functions of torch on flat lists of tensors, their derivatives and batches, and their graphs.

A transform of JAX's becomes one of torch's, on the model itself and not on its graph. So whatever
says how a model is differentiated holds: `detach`, `no_grad`, an `autograd.Function`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import preserve_node_meta
from torch.nn.attention import SDPBackend, sdpa_kernel

from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.decompositions.tracing import traced
from xla_dynamo.decompositions.whole_resampling import resampling_is_whole
from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.torch_private import FakeTensorMode, OpOverload, enable_python_dispatcher, schema

aten = torch.ops.aten
Tensors: TypeAlias = tuple[torch.Tensor, ...]


class TensorType(NamedTuple):
    """The shape and the dtype of a tensor of the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def is_differentiable(self) -> bool:
        """Whether such tensors have gradients."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def batched(self) -> Callable[[int], "TensorType"]:
        """The type of a stack of so many such tensors."""
        return lambda size: TensorType((size, *self.shape), self.dtype)

    def fake(self) -> torch.Tensor:
        """An empty tensor, which is a fake one in a mode of fake tensors."""
        return torch.empty(self.shape, dtype=self.dtype)


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of a tensor."""
    return TensorType(tuple(tensor.shape), tensor.dtype)


class TorchFunction:
    """A function of tensors to tensors, and what can be made of it; compared by identity.

    Every transform of the same function by the same arguments is the same object, so that caches
    of traces and executables know it.

    Attributes:
        name: of its programs.
        inputs: the types of its arguments.
        draws: how many operators draw random numbers.
        batched: whether there is a `Vmap` in it.
    """

    def __init__(
        self, name: str, inputs: Sequence[TensorType], draws: int, batched: bool = False
    ) -> None:
        """Describe a function; subclasses say what it computes."""
        self.name, self.inputs = name, tuple(inputs)
        self.draws, self.batched = draws, batched
        self.jvp = functools.cache(functools.partial(Jvp, self))
        self.vjp = functools.cache(functools.partial(Vjp, self))
        self.vmap = functools.cache(functools.partial(Vmap, self))
        self._transposed = functools.cache(functools.partial(Transposed, self))

    @property
    def takes_seed(self) -> bool:
        """Whether a call needs a seed: all that is made of a function draws the same numbers."""
        return self.draws > 0

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of its results."""
        raise NotImplementedError

    def run(self, inputs: Tensors, nested: bool) -> Tensors:
        """Compute; `nested` if inside a transform of torch.func, which autograd knows not of."""
        raise NotImplementedError

    def transposed(self, linear: tuple[int, ...], results: tuple[int, ...]) -> "TorchFunction":
        """The transpose in those inputs in which the function is linear, of these results.

        It takes the other inputs and the results' cotangents, and gives the inputs' cotangents.
        """
        return self._transposed(linear, results)

    @functools.cached_property
    def graph(self) -> torch.fx.GraphModule:
        """The function as a functional ATen graph of operators that the table may have.

        Raises:
            UnsupportedOperator: it draws other random numbers than the function it is made of.
            RuntimeError: torch cannot trace or differentiate it so.
        """
        gm = self._trace()
        if self.draws and _draws(gm) != self.draws:
            raise UnsupportedOperator(
                f"{self.name} draws {_draws(gm)} times where the model draws {self.draws} times, "
                "so it would compute with other random numbers: leave torch.utils.checkpoint out "
                "of the model, and call it under jax.checkpoint"
            )
        return gm

    def _trace(self) -> torch.fx.GraphModule:
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        # The fused attentions have neither a second derivative nor a rule for batches.
        with _whatever_surrounds_it(), resampling_is_whole(), sdpa_kernel(SDPBackend.MATH):
            # The dispatcher writes batch norm in an operator that torch.func.vmap has no rule for.
            dispatcher = contextlib.nullcontext() if self.batched else enable_python_dispatcher()
            with mode, torch.enable_grad(), dispatcher:
                fakes = [type_.fake() for type_ in self.inputs]
                trace = make_fx(self._on_tensors, decompositions(), record_stack_traces=True)
                gm = trace(*fakes)
            if not any(map(_writes, gm.graph.nodes)):
                return gm
            # Derivatives by autograd cannot be traced under `functionalize`: so trace twice.
            with preserve_node_meta():
                return traced(torch.fx.Interpreter(gm).run, fakes)

    def _on_tensors(self, *inputs: torch.Tensor) -> Tensors:
        return tuple(self.run(inputs, nested=False))


@contextlib.contextmanager
def _whatever_surrounds_it() -> Iterator[None]:
    """Trace a function as it is by itself: JAX differentiates, and may trace it later again."""
    with contextlib.ExitStack() as stack:
        # Its tensors have no gradients.
        stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class Function(TorchFunction):
    """A function that is given as Python code."""

    def __init__(
        self, name: str, inputs: Sequence[TensorType], function: Callable[..., Tensors]
    ) -> None:
        """Take a function of the tensors as separate arguments; it is traced at once."""
        super().__init__(name, inputs, draws=0)
        self._function = function
        self.draws = _draws(self.graph)

    @functools.cached_property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of its results."""
        results: Any = self.graph.graph.output_node().args[0]
        return tuple(type_of(node.meta["val"]) for node in results)

    def sources(self) -> list[int | None]:
        """The number of the input that each result is a copy of; None for one that is computed."""
        placeholders = self.graph.graph.find_nodes(op="placeholder")
        numbers = {node: i for i, node in enumerate(placeholders)}
        found = []
        for node in self.graph.graph.output_node().args[0]:  # type: ignore[union-attr]
            while getattr(node, "target", None) in _COPIES:
                node = node.args[0]
            found.append(numbers.get(node))
        return found

    def keep(self, results: Sequence[int]) -> None:
        """Leave out all other results; the Python code must do so from now on."""
        output = self.graph.graph.output_node()
        every: Any = output.args[0]
        output.args = (tuple(every[i] for i in results),)
        self.graph.recompile()

    def run(self, inputs: Tensors, nested: bool) -> Tensors:
        """Compute."""
        return self._function(*inputs)


_COPIES = (aten.clone.default, aten.detach.default, aten.alias.default)


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and schema(node.target).is_mutable


def _draws(gm: torch.fx.GraphModule) -> int:
    """How many nodes draw random numbers; those in order get the same ones, of the same seed."""
    tag = torch.Tag.nondeterministic_seeded
    return sum(tag in getattr(node.target, "tags", ()) for node in gm.graph.nodes)


class Vjp(TorchFunction):
    """Cotangents of results to cotangents of inputs: takes the function's inputs, then the former.

    Cotangents are JAX's: of complex numbers, the conjugates of torch's.
    """

    def __init__(self, of: TorchFunction, wrt: tuple[int, ...], results: tuple[int, ...]) -> None:
        """Differentiate these results with respect to these inputs."""
        inputs = (*of.inputs, *(of.outputs[i] for i in results))
        super().__init__(f"{of.name}_vjp", inputs, of.draws, of.batched)
        self._of, self._wrt, self._results = of, wrt, results

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of the inputs' cotangents."""
        return tuple(self._of.inputs[i] for i in self._wrt)

    def run(self, inputs: Tensors, nested: bool) -> Tensors:
        """Compute the function, then the cotangents."""
        count = len(self._of.inputs)
        given, cotangents = list(inputs[:count]), _conjugates(inputs[count:])

        def results_of(*wrt: torch.Tensor) -> Tensors:
            for index, tensor in zip(self._wrt, wrt, strict=True):
                given[index] = tensor
            results = self._of.run(tuple(given), nested)
            return tuple(results[i] for i in self._results)

        wrt = tuple(given[i] for i in self._wrt)
        gradients = _nested_gradients if nested else _gradients
        return _conjugates(gradients(results_of, wrt, cotangents))


class Jvp(TorchFunction):
    """Tangents of inputs to tangents of results: takes the function's inputs, then the former."""

    def __init__(self, of: TorchFunction, wrt: tuple[int, ...]) -> None:
        """Differentiate with respect to these inputs."""
        tangents = tuple(of.inputs[i] for i in wrt)
        super().__init__(f"{of.name}_jvp", (*of.inputs, *tangents), of.draws, of.batched)
        self._of, self._wrt = of, wrt
        self._results = tuple(i for i, t in enumerate(of.outputs) if t.is_differentiable)

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of the tangents, of those results that have gradients."""
        return tuple(self._of.outputs[i] for i in self._results)

    def run(self, inputs: Tensors, nested: bool) -> Tensors:
        """Compute the tangents: the transpose of gradients, which are linear in cotangents.

        Of torch's own forward mode fewer operators have formulas.
        """
        count = len(self._of.inputs)
        given, tangents = list(inputs[:count]), tuple(inputs[count:])

        def results_of(*wrt: torch.Tensor) -> Tensors:
            for index, tensor in zip(self._wrt, wrt, strict=True):
                given[index] = tensor
            results = self._of.run(tuple(given), nested)
            return tuple(results[i] for i in self._results)

        def pulled(*cotangents: torch.Tensor) -> Tensors:
            return gradients(results_of, wrt, cotangents)

        gradients = _nested_gradients if nested else _gradients
        wrt = tuple(given[i] for i in self._wrt)
        zeros = tuple(type_.fake().zero_() for type_ in self.outputs)
        return gradients(pulled, zeros, tangents)

    def transposed(self, linear: tuple[int, ...], results: tuple[int, ...]) -> TorchFunction:
        """The transpose; in all tangents together it is the `Vjp` of the function."""
        count = len(self._of.inputs)
        if linear == tuple(range(count, count + len(self._wrt))):
            return self._of.vjp(self._wrt, tuple(self._results[i] for i in results))
        return super().transposed(linear, results)


class Transposed(TorchFunction):
    """The transpose of a function in inputs in which it is linear."""

    def __init__(
        self, of: TorchFunction, linear: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        """Transpose in these inputs, for cotangents of these results."""
        others = [t for i, t in enumerate(of.inputs) if i not in linear]
        cotangents = [of.outputs[i] for i in results]
        inputs = (*others, *cotangents)
        super().__init__(f"{of.name}_transposed", inputs, of.draws, of.batched)
        self._of, self._linear, self._vjp = of, linear, of.vjp(linear, results)

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of the inputs' cotangents."""
        return tuple(self._of.inputs[i] for i in self._linear)

    def run(self, inputs: Tensors, nested: bool) -> Tensors:
        """The cotangents at zero, which of a linear function are those everywhere."""
        count = len(self._of.inputs) - len(self._linear)
        others = iter(inputs[:count])
        whole = tuple(
            type_.fake().zero_() if i in self._linear else next(others)
            for i, type_ in enumerate(self._of.inputs)
        )
        return self._vjp.run((*whole, *inputs[count:]), nested)


class Vmap(TorchFunction):
    """A function at each element of a batch; every result has the batch as its first dimension."""

    def __init__(self, of: TorchFunction, size: int, dims: tuple[int | None, ...]) -> None:
        """Take inputs with a batch of this size in these dimensions, or None for those without."""
        inputs = []
        for type_, dim in zip(of.inputs, dims, strict=True):
            shape = list(type_.shape)
            if dim is not None:
                shape.insert(dim, size)
            inputs.append(TensorType(tuple(shape), type_.dtype))
        super().__init__(f"{of.name}_batched", inputs, of.draws, batched=True)
        self._of, self._size, self._dims = of, size, dims

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of the stacked results."""
        return tuple(type_.batched(self._size) for type_ in self._of.outputs)

    def run(self, inputs: Tensors, nested: bool) -> Tensors:
        """Compute by torch's rules for batches; draws are the same for each element, as in JAX."""

        def each(*inputs: torch.Tensor) -> Tensors:
            return tuple(self._of.run(inputs, nested=True))

        return torch.func.vmap(each, in_dims=self._dims, randomness="same")(*inputs)


def _conjugates(tensors: Sequence[torch.Tensor]) -> Tensors:
    return tuple(t.conj_physical() if t.is_complex() else t for t in tensors)


def _nested_gradients(
    function: Callable[..., Tensors], wrt: Tensors, cotangents: Tensors
) -> Tensors:
    return torch.func.vjp(function, *wrt)[1](cotangents)


def _gradients(function: Callable[..., Tensors], wrt: Tensors, cotangents: Tensors) -> Tensors:
    """Gradients by autograd, which may be differentiated again if a tensor has gradients already.

    torch.func.vjp would refuse an `autograd.Function` without `setup_context`.
    """
    again = any(t.requires_grad for t in (*wrt, *cotangents))
    leaves = tuple(t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in wrt)
    pairs = [
        (result, cotangent)
        for result, cotangent in zip(function(*leaves), cotangents, strict=True)
        if result.requires_grad
    ]
    if not pairs:
        return tuple(torch.zeros_like(t) for t in wrt)
    results, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(results, leaves, given, create_graph=again, allow_unused=True)
    grads = zip(found, wrt, strict=True)
    return tuple(torch.zeros_like(t) if g is None else g for g, t in grads)
