"""`core.xla_builder` and `core.xla_op_registry`."""

from xla_dynamo.torch_xla.names.entries import Names, other, same

_BUILDER = "xla_dynamo.xla_builder"

TABLES: dict[str, Names] = {
    "torch_xla.core.xla_builder": {
        **same(
            _BUILDER,
            "CompiledCallableWithCache FlattenedInputFunc JaxCallable JaxFlattenedInputFunc Op "
            "Shape Type XlaCallable call_jax computation_from_module_proto create_builder "
            "create_computation get_computation_hlo mkleaf mkop mkparam mkshape tensor_shape "
            "xla_computation_as_func",
        ),
        **other(
            _PT_XLA_TYPE_MAP="xla_dynamo.xla_builder.shapes:TYPE_NAMES",
            _XLA_PT_TYPE_MAP="xla_dynamo.xla_builder.shapes:TORCH_DTYPES",
        ),
    },
    "torch_xla.core.xla_op_registry": same("xla_dynamo.xla_builder.op_registry", "Op register"),
}
