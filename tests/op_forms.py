"""The forms in which an operator of the database is called, in eager or through a backend."""

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from tests.comparison import copied, drawn_like

# Runs a function of a list of tensors, in eager or through a compiler.
Runner = Callable[[Callable[..., Any], list[torch.Tensor]], Any]


def eagerly(program: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
    torch.manual_seed(1)
    return program(tensors)


def run_compiled(
    program: Callable[..., Any], tensors: list[torch.Tensor], backend: str, **how: Any
) -> Any:
    torch.manual_seed(1)
    torch._dynamo.reset()
    return torch.compile(program, backend=backend, **how)(tensors)


def on_device(program: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
    """On the lazy 'xla' device: there and back, which autograd does too."""
    torch.manual_seed(1)
    with torch.device("xla"):
        result = program([t.to("xla") for t in tensors])
    return pytree.tree_map_only(torch.Tensor, _with_strides, result)


def _with_strides(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the host with the elements and strides of one on the device."""
    host = x.cpu()
    if x.requires_grad or host.stride() == x.stride() or not x.numel():
        return host
    length = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    place = torch.arange(length).as_strided(x.shape, x.stride())
    memory = torch.zeros(length, dtype=x.dtype)
    memory[place.reshape(-1)] = host.reshape(-1)
    return memory.as_strided(x.shape, x.stride())


def _split(sample: SampleInput) -> tuple[list[torch.Tensor], Callable[[list[torch.Tensor]], Any]]:
    """Copies of a sample's tensors, and what puts such a list in their places again."""
    places: list[torch.Tensor] = []
    others: list[Any] = []

    def written(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            places.append(value)
            return f"tensors[{len(places) - 1}]"
        if type(value) in (list, tuple):
            inside = "".join(f"{written(v)}, " for v in value)
            return f"[{inside}]" if type(value) is list else f"({inside})"
        if type(value) is dict:
            return "{" + "".join(f"{k!r}: {written(v)}, " for k, v in value.items()) + "}"
        others.append(value)
        return f"others[{len(others) - 1}]"

    # Written out, since tracing pytree's own functions took Dynamo longer than all else here.
    code = f"lambda tensors: {written((sample.input, tuple(sample.args), dict(sample.kwargs)))}"
    tensors = [x for x in pytree.tree_leaves(others) if isinstance(x, torch.Tensor)]
    assert not tensors, "tensors within an object that is neither a list, a tuple nor a dict"
    return [copied(x) for x in places], eval(code, {"others": others})


def _call(op: OpInfo, sample: SampleInput, run: Runner) -> tuple[Any, list[torch.Tensor]]:
    tensors, filled = _split(sample)

    def program(tensors: list[torch.Tensor]) -> Any:
        input_, args, kwargs = filled(tensors)
        return op.op(input_, *args, **kwargs)

    return run(program, tensors), tensors


def values(op: OpInfo, sample: SampleInput, run: Runner) -> Any:
    """The result of an operator."""
    return _call(op, sample, run)[0]


def gradients(op: OpInfo, sample: SampleInput, run: Runner) -> Any:
    """The gradients of an operator's results, weighted at random, in its inputs."""
    result, tensors = _call(op, sample, run)
    leaves = pytree.tree_leaves(sample.output_process_fn_grad(result))
    outputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    inputs = [t for t in tensors if t.requires_grad]
    torch.manual_seed(2)
    weights = [drawn_like(t) for t in outputs]
    if not outputs:
        return ()
    return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)


def in_place(op: OpInfo, sample: SampleInput, run: Runner) -> Any:
    """What the in-place form makes of an input of the graph, and of a tensor made in it."""
    tensors, filled = _split(sample)

    def program(tensors: list[torch.Tensor]) -> Any:
        input_, args, kwargs = filled(tensors)
        inner = input_.clone()
        op.inplace_variant(inner, *args, **kwargs)
        return op.inplace_variant(input_, *args, **kwargs), inner

    result, inner = run(program, tensors)
    _same_memory(result, tensors[0])
    return tensors[0], inner.contiguous()  # AOTAutograd may give it the strides of a new tensor


def out(op: OpInfo, sample: SampleInput, run: Runner) -> Any:
    """What an operator writes into the tensors of `out=`."""
    tensors, filled = _split(sample)
    expected = _call(op, sample, eagerly)[0]
    given = pytree.tree_map(lambda x: torch.zeros(x.shape, dtype=x.dtype), expected)
    flat, spec = pytree.tree_flatten(given)
    spec = pytree.tree_structure(tuple(given)) if len(flat) > 1 else spec

    def program(tensors: list[torch.Tensor]) -> Any:
        input_, args, kwargs = filled(tensors[len(flat) :])
        outs = pytree.tree_unflatten(tensors[: len(flat)], spec)
        return op.op(input_, *args, out=outs, **kwargs)

    result = run(program, [*flat, *tensors])
    for r, o in zip(pytree.tree_leaves(result), flat, strict=True):
        _same_memory(r, o)
    return given


def literals(op: OpInfo, sample: SampleInput, run: Runner) -> Any:
    """The result of an operator on tensors that the program spells out: XLA computes beforehand."""
    tensors, filled = _split(sample)
    given = [(t.tolist(), t.dtype, t.shape) for t in tensors]

    def program(_: list[torch.Tensor]) -> Any:
        spelt = [torch.tensor(n, dtype=dtype).reshape(shape) for n, dtype, shape in given]
        input_, args, kwargs = filled(spelt)
        return op.op(input_, *args, **kwargs)

    return run(program, [])


def _same_memory(result: torch.Tensor, given: torch.Tensor) -> None:
    assert result.data_ptr() == given.data_ptr(), "the result is another tensor"


# The forms in which an operator is called.
FORMS = {
    "values": values,
    "gradients": gradients,
    "in-place": in_place,
    "out": out,
    "special": values,
    "literals": literals,
}
