"""Custom calls of StableHLO as operators, memory of the host, and notes in a module's locations."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import dtype_name, tensor_type
from xla_dynamo.lowerings.table import Context, lowers
from xla_dynamo.torch_xla.kernels.operators import library

_TAG = (torch.Tag.pt2_compliant_tag,)
library.define(
    "stablehlo_custom_call(Tensor[] operands, str call_target, str results, bool has_side_effect, "
    "str backend_config, int api_version, str frontend_attributes) -> Tensor[]",
    tags=_TAG,
)
library.define("place_to_host(Tensor t) -> Tensor", tags=_TAG)
library.define("place_to_device(Tensor t) -> Tensor", tags=_TAG)
library.define("write_mlir_debuginfo(Tensor x, str data) -> Tensor", tags=_TAG)


def stablehlo_custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> Any:
    """A call of a function that the platform knows, or that an exported program is to name.

    `jax.ffi.register_ffi_target` makes functions known. It has no gradient, and eager torch cannot
    run it.

    Args:
        args: the operands.
        call_target: the function's name.
        output_shapes: of each result.
        output_dtypes: of each result.
        has_side_effect: whether it is called even if nobody reads its results.
        backend_config: a text for it, or, of version 4, the attributes of a dictionary of MLIR.
        api_version: XLA's version of the call's form, 1 to 4; 0 is 1.
        frontend_attributes: texts for XLA.

    Returns:
        The result, or a list of several.
    """
    pairs = zip(output_shapes, output_dtypes, strict=True)
    results = [[list(map(int, shape)), dtype_name(dtype)] for shape, dtype in pairs]
    made: list[torch.Tensor] = torch.ops.xla.stablehlo_custom_call(
        list(args),
        call_target,
        json.dumps(results),
        has_side_effect,
        backend_config,
        api_version,
        json.dumps(dict(frontend_attributes or {})),
    )
    return made[0] if len(made) == 1 else made


def extract_custom_call_outputs_shape_dtype(n: torch.fx.Node) -> tuple[Any, Any]:
    """The shapes and the dtypes of what a node of an exported graph returns."""
    value = n.meta["val"]
    tensors = [value] if isinstance(value, torch.Tensor) else list(value)
    return [x.shape for x in tensors], [x.dtype for x in tensors]


def _types(results: str) -> list[tuple[list[int], torch.dtype]]:
    return [(shape, getattr(torch, name)) for shape, name in json.loads(results)]


def _fakes(
    operands: Sequence[torch.Tensor], call_target: str, results: str, *_: Any
) -> list[torch.Tensor]:
    device = operands[0].device if operands else None
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in _types(results)]


def _no_eager(operands: Sequence[torch.Tensor], call_target: str, *_: Any) -> list[torch.Tensor]:
    raise NotImplementedError(
        f"eager torch has no {call_target}: call stablehlo_custom_call on tensors of the device "
        "'xla', or in a function that is compiled or exported"
    )


@lowers("xla.stablehlo_custom_call.default")
def _called(
    ctx: Context,
    operands: Sequence[Any],
    call_target: str,
    results: str,
    has_side_effect: bool,
    backend_config: str,
    api_version: int,
    frontend_attributes: str,
) -> tuple[Any, ...]:
    types = [tensor_type(tuple(shape), dtype) for shape, dtype in _types(results)]
    return tuple(
        _custom_call(
            types,
            operands,
            call_target,
            has_side_effect,
            json.loads(frontend_attributes),
            backend_config,
            api_version,
        )
    )


def _custom_call(
    types: Sequence[ir.Type],
    operands: Sequence[Any],
    target: str,
    has_side_effect: bool,
    frontend_attributes: Mapping[str, str],
    backend_config: str = "",
    api_version: int = 0,
) -> Sequence[Any]:
    version = api_version or 1
    config = ir.Attribute.parse(backend_config or "{}") if version == 4 else None
    call = hlo.CustomCallOp(
        list(types),
        list(operands),
        target,
        has_side_effect=has_side_effect,
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), version),
        backend_config=config or ir.StringAttr.get(backend_config),
    )
    if frontend_attributes:
        texts = {name: ir.StringAttr.get(text) for name, text in frontend_attributes.items()}
        call.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(texts)
    return list(call.results)


def place_to_host(t: torch.Tensor | None) -> Any:
    """A tensor's elements in memory of the host, inside a program; on the CPU a copy.

    Its gradient is the gradient of the result.
    """
    return None if t is None else torch.ops.xla.place_to_host(t)


def place_to_device(t: torch.Tensor | None) -> Any:
    """A tensor's elements in memory of the device, inside a program; on the CPU a copy.

    Its gradient is the gradient of the result.
    """
    return None if t is None else torch.ops.xla.place_to_device(t)


def to_host_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of `place_to_host`."""
    return grad


def to_device_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of `place_to_device`."""
    return grad


def write_mlir_debuginfo(x: torch.Tensor, data: str) -> torch.Tensor:
    """A copy; in programs, the operation that made x has a text as its location."""
    made: torch.Tensor = torch.ops.xla.write_mlir_debuginfo(x, data)
    return made


@lowers("xla.place_to_host.default")
def _place_to_host(ctx: Context, t: Any) -> Any:
    return _placed(ctx, t, "pinned_host")


@lowers("xla.place_to_device.default")
def _place_to_device(ctx: Context, t: Any) -> Any:
    return _placed(ctx, t, "device")


def _placed(ctx: Context, t: Any, memory: str) -> Any:
    if ctx.platform == "cpu":  # which has one memory
        return t
    attributes = {"_xla_buffer_placement": memory}
    return _custom_call([t.type], [t], "annotate_device_placement", True, attributes)[0]


@lowers("xla.write_mlir_debuginfo.default")
def _write_mlir_debuginfo(ctx: Context, x: Any, data: str) -> Any:
    if isinstance(x.owner, ir.Operation | ir.OpView):  # and no argument
        x.owner.operation.location = ir.Location.name(data)
    return x


def _copy(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.clone()


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


torch.library.impl(
    "xla::stablehlo_custom_call", "CompositeExplicitAutograd", _no_eager, lib=library
)
torch.library.register_fake("xla::stablehlo_custom_call", _fakes, lib=library)
for _name, _backward in (
    ("xla::place_to_host", to_host_backward),
    ("xla::place_to_device", to_device_backward),
    ("xla::write_mlir_debuginfo", lambda ctx, grad: (grad, None)),
):
    torch.library.impl(_name, "CompositeExplicitAutograd", _copy, lib=library)
    torch.library.register_fake(_name, _like, lib=library)
    torch.library.register_autograd(_name, _backward, lib=library)
