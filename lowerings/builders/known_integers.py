"""Integers that are known while a program is written: iotas, constants, arithmetic on them."""

import numpy as np
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.values import Value, defining_name, shape_of

# Values of more elements are not looked at.
_MOST = 1 << 20
_ARITHMETIC = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
}


def known_integers(value: Value) -> np.ndarray | None:
    """The elements of a value of at most one dimension, if they are known: signed integers."""
    element, shape, op = value.type.element_type, shape_of(value), value.owner
    name = defining_name(value)
    is_signed = isinstance(element, ir.IntegerType) and element.is_signless and element.width >= 8
    if name is None or not is_signed or len(shape) > 1 or max(shape, default=0) > _MOST:
        return None
    known = None
    if name == "stablehlo.iota":
        known = np.arange(shape[0])
    elif name == "stablehlo.constant":
        known = np.array(ir.DenseIntElementsAttr(op.attributes["value"])).reshape(shape)
    elif name == "stablehlo.convert":
        known = known_integers(op.operands[0])
    elif name in _ARITHMETIC:
        left, right = (known_integers(operand) for operand in op.operands)
        if left is not None and right is not None:
            known = _ARITHMETIC[name](left, right)
    return None if known is None else known.astype(f"int{element.width}")
