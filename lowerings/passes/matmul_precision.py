"""Set the precision of float32 matrix products, on devices that have faster inexact ones."""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.target import Target

# torch's names, from torch.set_float32_matmul_precision. On CUDA the latter two are TF32; on TPUs
# they are three passes of bfloat16 and one.
_PRECISIONS = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}


def set_matmul_precision(module: ir.Module, target: Target) -> None:
    """Give every product of float32 or complex64 the target's precision, if it asks for none.

    Assumes nothing of the module. Leaves products of other dtypes, and those that a JAX function
    has written with a higher precision.
    """
    precision = hlo.PrecisionAttr.get(_PRECISIONS[target.matmul_precision], module.context)
    both_operands = ir.ArrayAttr.get([precision] * 2, module.context)
    float32 = ir.F32Type.get(module.context)
    wide = float32, ir.ComplexType.get(float32)

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.dot_general":
            types = [ir.RankedTensorType(operand.type).element_type for operand in op.operands]
            given = op.attributes.get("precision_config")
            if all(t in wide for t in types) and "HIGH" not in str(given):
                op.attributes["precision_config"] = both_operands
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
