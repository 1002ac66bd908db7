"""Computations written operation by operation, as with XLA's builder, over StableHLO.

The names are those of PyTorch/XLA's `torch_xla.core.xla_builder` and `xla_op_registry`.
"""

from xla_dynamo.xla_builder.builder import create_builder
from xla_dynamo.xla_builder.callables import (
    CompiledCallableWithCache,
    FlattenedInputFunc,
    JaxCallable,
    JaxFlattenedInputFunc,
    XlaCallable,
    call_jax,
)
from xla_dynamo.xla_builder.computations import (
    computation_from_module_proto,
    get_computation_hlo,
)
from xla_dynamo.xla_builder.op import Op, create_computation, mkleaf, mkop, mkparam
from xla_dynamo.xla_builder.shapes import Shape, Type, mkshape, tensor_shape
from xla_dynamo.xla_builder.user_computation import xla_computation_as_func

__all__ = [
    "CompiledCallableWithCache",
    "FlattenedInputFunc",
    "JaxCallable",
    "JaxFlattenedInputFunc",
    "Op",
    "Shape",
    "Type",
    "XlaCallable",
    "call_jax",
    "computation_from_module_proto",
    "create_builder",
    "create_computation",
    "get_computation_hlo",
    "mkleaf",
    "mkop",
    "mkparam",
    "mkshape",
    "tensor_shape",
    "xla_computation_as_func",
]
