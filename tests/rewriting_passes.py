"""Passes that tests register: wrong ones, so that results tell which of them have run."""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo


def operations_named(module, name):
    """The operations of a module that have a name, nested ones included."""
    found = []

    def visit(op):
        if op.name == name:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def sine_for_tanh(module, target):
    """A wrong pass: sin where tanh was."""
    for op in operations_named(module, "stablehlo.tanh"):
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(hlo.sine(op.operands[0]))
        op.erase()


def cosine_for_tanh(module, target):
    """Another wrong pass: cos where tanh was."""
    for op in operations_named(module, "stablehlo.tanh"):
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(hlo.cosine(op.operands[0]))
        op.erase()
