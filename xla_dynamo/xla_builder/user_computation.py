"""Computations as an operator of torch's: `torch.ops.xla.user_computation`.

In a compiled graph, and among what the 'xla' device records, a computation's StableHLO is inlined.
It has no gradient: wrap it in a `torch.autograd.Function` with another one for that.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.builders.functions import merge
from xla_dynamo.lowerings.table import Context, lowers
from xla_dynamo.xla_builder.computations import Computation, function_name, plain_leaves
from xla_dynamo.xla_builder.shapes import Shape, tensor_shape, torch_dtype_of

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "user_computation(Tensor[] operands, str computation) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
# By key. A graph that is traced has the key alone, and may be lowered again at any time: they live
# as long as the process.
_computations: dict[str, Computation] = {}


def register(computation: Computation) -> str:
    """The key under which graphs have a computation from now on."""
    return _computations.setdefault(computation.key, computation).key


def call(key: str, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a computation's result for operands, without gradients.

    Tensors of the CPU are computed too, by the 'xla' device.
    """
    return list(torch.ops.xla.user_computation([x.detach() for x in operands], key))


def xla_computation_as_func(
    computation: Computation, name: str | None = None
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """A function of a list of tensors, which returns the list of the computation's results.

    `name` is not used.
    """
    key = register(computation)
    return lambda input_tensors: call(key, input_tensors)


def check(computation: Computation, operands: Sequence[torch.Tensor]) -> None:
    """Raise TypeError unless operands have the shapes of a computation's parameters."""
    wanted = [Shape(p) for s in computation.parameters for p in plain_leaves(s.shape)]
    given = tensor_shape(list(operands))
    if [(w.dtype, w.sizes) for w in wanted] != [(g.dtype, g.sizes) for g in given]:
        raise TypeError(
            f"the computation {computation.name!r} takes {wanted}, and was given {given}"
        )


def _run(operands: Sequence[torch.Tensor], computation: str) -> list[torch.Tensor]:
    """Eager torch: the 'xla' device computes it."""
    check(_computations[computation], operands)
    device = operands[0].device if operands else torch.device("cpu")
    made = torch.ops.xla.user_computation([x.to("xla") for x in operands], computation)
    return [x.to(device) for x in made]


def _fakes(operands: Sequence[torch.Tensor], computation: str) -> list[torch.Tensor]:
    known = _computations[computation]
    check(known, operands)
    device = operands[0].device if operands else None
    return [
        torch.empty(p["sizes"], dtype=torch_dtype_of(p["type"]), device=device)
        for p in plain_leaves(known.result.shape)
    ]


_NAME = "xla::user_computation"
torch.library.impl(_NAME, "CompositeExplicitAutograd", _run, lib=_library)
torch.library.register_fake(_NAME, _fakes, lib=_library)


@lowers("xla.user_computation.default")
def _inlined(ctx: Context, operands: Sequence[Any], computation: str) -> tuple[Any, ...]:
    known = _computations[computation]
    key = ("xla.user_computation", computation)
    if key not in ctx.functions:
        main = merge(ctx.module, ir.Module.parse(known.module), function_name(known))
        ctx.functions[key] = (main.name.value, list(main.type.results))
    name, types = ctx.functions[key]
    return tuple(func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(operands)).results)
