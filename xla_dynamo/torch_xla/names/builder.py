"""`core.xla_builder` and `core.xla_op_registry`, and texts of graphs."""

from xla_dynamo.torch_xla.names.entries import Names, other, same

_BUILDER, _TEXTS = "xla_dynamo.xla_builder", "xla_dynamo.torch_xla.forms.graph_texts"

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
            create_placeholder_tensor="xla_dynamo.lazy.placeholders:create_placeholder_tensor",
            _PT_XLA_TYPE_MAP="xla_dynamo.xla_builder.shapes:TYPE_NAMES",
            _XLA_PT_TYPE_MAP="xla_dynamo.xla_builder.shapes:TORCH_DTYPES",
        ),
    },
    "torch_xla.core.xla_op_registry": same("xla_dynamo.xla_builder.op_registry", "Op register"),
    "torch_xla.core.xla_model": same(_TEXTS, "get_stablehlo get_stablehlo_bytecode"),
    "torch_xla.debug.graph_saver": same(_TEXTS, "save_tensors_graph"),
    "torch_xla._XLAC": other(
        _get_graph_hash=f"{_TEXTS}:get_graph_hash",
        _get_stablehlo=f"{_TEXTS}:get_stablehlo_of_extension",
        _get_xla_tensor_debug_info=f"{_TEXTS}:get_xla_tensor_debug_info",
        _get_xla_tensor_shape_type=f"{_TEXTS}:get_xla_tensor_shape_type",
        _get_xla_tensors_dot=f"{_TEXTS}:get_xla_tensors_dot",
        _get_xla_tensors_hlo=f"{_TEXTS}:get_xla_tensors_hlo",
        _get_xla_tensors_hlo_proto=f"{_TEXTS}:get_xla_tensors_hlo_proto",
        _get_xla_tensors_text=f"{_TEXTS}:get_xla_tensors_text",
        _run_stablehlo=f"{_TEXTS}:run_stablehlo",
        _xla_computation_text=f"{_BUILDER}:get_computation_hlo",
        _xla_op_computation_from_module_proto=f"{_BUILDER}:computation_from_module_proto",
        _xla_op_create_builder=f"{_BUILDER}:create_builder",
        _xla_user_computation=f"{_TEXTS}:user_computation",
        lowering="torch_xla._XLAC.lowering",
    ),
    "torch_xla._XLAC.lowering": same(
        "xla_dynamo.torch_xla.forms.lowering_context", "LoweringContext"
    ),
}
