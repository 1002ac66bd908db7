"""An operator of a library to a custom call: tensors are operands, everything else attributes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.torch_private import schema

Node: TypeAlias = torch.fx.Node


def custom_call(node: Node, env: Mapping[Node, Any], promised: Any) -> Any:
    """The results of the call of an operator, in the typed form of XLA's FFI.

    The target is "namespace.operator", with ".overload" behind it unless that is the default one.
    The attributes have the names of the operator's schema; an argument that is None has none.

    Raises:
        UnsupportedOperator: the operator returns no tensor, or has an argument that no attribute
            can hold.
    """
    op: Any = node.target
    operands: list[ir.Value] = []
    attributes: dict[str, ir.Attribute] = {}
    given = {a.name: value for a, value in zip(schema(op).arguments, node.args, strict=False)}
    for argument in schema(op).arguments:
        value = {**given, **node.kwargs}.get(argument.name, argument.default_value)
        value = torch.fx.map_arg(value, env.__getitem__)
        if isinstance(value, ir.Value):
            operands.append(value)
        elif isinstance(value, list | tuple) and any(isinstance(v, ir.Value) for v in value):
            operands += [v for v in value if v is not None]
        elif value is not None:
            attributes[argument.name] = _attribute(value, argument.name, op)
    is_one = isinstance(promised, torch.Tensor)
    results = [promised] if is_one else list(promised or ())
    if not results or not all(isinstance(x, torch.Tensor) for x in results):
        raise UnsupportedOperator(f"{op} returns no tensors, and so cannot be a custom call")
    call = hlo.CustomCallOp(
        [tensor_type(tuple(x.shape), x.dtype) for x in results],
        operands,
        str(op).removesuffix(".default"),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
        backend_config=ir.DictAttr.get(attributes),
    )
    return call.results[0] if is_one else tuple(call.results)


def _attribute(value: Any, name: str, op: Any) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F64Type.get(), value)
    if isinstance(value, str | torch.dtype):
        return ir.StringAttr.get(str(value).removeprefix("torch."))
    if isinstance(value, Sequence) and all(type(v) is int for v in value):
        return ir.DenseI64ArrayAttr.get(list(value))
    if isinstance(value, Sequence) and all(type(v) is float for v in value):
        return ir.DenseF64ArrayAttr.get(list(value))
    raise UnsupportedOperator(
        f"the argument {name!r} of {op} is {value!r}, which no attribute of a custom call can hold"
    )
