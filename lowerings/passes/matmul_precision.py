"""How exact products of float32 matrices are, on devices that have faster inexact ones."""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.target import Target

# torch's names, from torch.set_float32_matmul_precision. On CUDA the latter two are TF32; on TPUs
# they are three passes of bfloat16 and one.
_PRECISIONS = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}


def set_matmul_precision(module: ir.Module, target: Target) -> None:
    """Give every product of float32 or complex64 in a module the precision, if it has none."""
    wanted = ir.ArrayAttr.get(
        [hlo.PrecisionAttr.get(_PRECISIONS[target.matmul_precision])] * 2, module.context
    )
    wide = ir.F32Type.get(module.context), ir.ComplexType.get(ir.F32Type.get(module.context))

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.dot_general":
            types = [ir.RankedTensorType(operand.type).element_type for operand in op.operands]
            given = op.attributes.get("precision_config")  # a JAX function may ask for more
            if all(t in wide for t in types) and "HIGH" not in str(given):
                op.attributes["precision_config"] = wanted
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
