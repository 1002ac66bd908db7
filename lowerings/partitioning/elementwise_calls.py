"""Elementwise operations of CHLO on their way through Shardy, which knows none of them.

Each is a custom call with a sharding rule until the program is partitioned.
"""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.values import shape_of

_TARGET, _NAME, _RULE = "xla_dynamo.chlo", "xla_dynamo.name", "sdy.sharding_rule"
_OF_CALL = {_NAME, _RULE, "call_target_name", "backend_config", "api_version", "has_side_effect"}


def is_elementwise_call(op: ir.Operation) -> bool:
    """Whether `wrap` has written an operation."""
    return _NAME in op.attributes


def wrap(op: ir.Operation) -> None:
    """Write a call in the place of an elementwise operation of CHLO; leave any other."""
    if not op.name.startswith("chlo.") or len(op.results) != 1 or len(op.regions):
        return
    (result,), operands = op.results, list(op.operands)
    shape = shape_of(result)
    if any(shape_of(x) != shape for x in operands):
        return
    mapping = sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([i]) for i in range(len(shape))])
    rule = sdy.OpShardingRuleAttr.get(shape, [mapping] * len(operands), [mapping], is_custom=True)
    with ir.InsertionPoint(op), op.location:
        call = hlo.CustomCallOp([result.type], operands, _TARGET)
    for name in op.attributes:
        call.attributes[name] = op.attributes[name]
    call.attributes[_RULE] = rule
    call.attributes[_NAME] = ir.StringAttr.get(op.name)
    result.replace_all_uses_with(call.results[0])
    op.erase()


def unwrap(op: ir.Operation) -> None:
    """Write the operation of CHLO that a call stands for; leave any other operation."""
    if not is_elementwise_call(op):
        return
    attributes = {n: op.attributes[n] for n in op.attributes if n not in _OF_CALL}
    name, type_ = ir.StringAttr(op.attributes[_NAME]).value, op.results[0].type
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(name, [type_], list(op.operands), attributes=attributes)
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
