"""`core.xla_builder` and `core.xla_op_registry`, and texts of graphs."""

from xla_dynamo.torch_xla.names.entries import Names, different, other, same

_STABLEHLO = "xla_dynamo.torch_xla.forms.stablehlo"
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
            _JAX_TO_XLA_COMPUTATION_CACHE="xla_dynamo.xla_builder.callables:KNOWN_FUNCTIONS",
            _jax_to_xla_computation_cache_elements=(
                "xla_dynamo.xla_builder.callables:number_of_known_forms"
            ),
            _PT_XLA_TYPE_MAP="xla_dynamo.xla_builder.shapes:TYPE_NAMES",
            _XLA_PT_TYPE_MAP="xla_dynamo.xla_builder.shapes:TORCH_DTYPES",
        ),
    },
    "torch_xla.core.xla_op_registry": same("xla_dynamo.xla_builder.op_registry", "Op register"),
    "torch_xla.core.xla_model": same(_TEXTS, "get_stablehlo get_stablehlo_bytecode"),
    "torch_xla.debug.graph_saver": same(_TEXTS, "save_tensors_graph"),
    "torch_xla.stablehlo": {
        **same(
            _STABLEHLO,
            "StableHLOExportOptions StableHLOGraphModule exported_program_to_stablehlo "
            "save_as_stablehlo save_torch_model_as_stablehlo",
        ),
        **same(
            f"{_STABLEHLO}_bundles",
            "InputLocation StableHLOFunc StableHLOFunctionMeta StableHLOJSONSerializer "
            "StableHLOModelBundle VariableSignature VariableType stablehlo_obj_hook",
        ),
        **same("xla_dynamo.torch_xla.forms.exports", "XLAExportInterpreter"),
        **other(_run_decompositions=f"{_STABLEHLO}:run_decompositions"),
    },
    "torch_xla.experimental.unbounded_dynamism_export": {
        **same(
            "xla_dynamo.torch_xla.forms.exports",
            "call_function exported_program_has_symbolic_input_shape remove_no_op_slice",
        ),
        **same("xla_dynamo.torch_xla.forms.saved_models", "wrap_func_as_nn_module"),
        **different(
            "There is nothing to prepare: the lowering takes dynamic sizes as they are.",
            "xla_dynamo.torch_xla.forms.exports",
            "process_exported_program_with_symbolic_input",
        ),
        **same(
            "xla_dynamo.torch_xla.forms.dynamic_passes",
            "decompose_dynamic_native_group_norm decompose_dynamic_native_layer_norm "
            "decompose_dynamic_shape_select decompose_split_with_sizes dynamic_unsqueeze_to_view "
            "flatten_embedding_indices_tensor native_group_norm_impl native_group_norm_pattern "
            "native_layer_norm_impl native_layer_norm_pattern replace_dynamic_expand_with_xla_op "
            "replace_dynamic_view_with_xla_op",
        ),
    },
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
        _xla_op_create=f"{_TEXTS}:op_create",
        _xla_op_param=f"{_TEXTS}:op_param",
        _xla_op_build=f"{_TEXTS}:op_build",
        _xla_user_computation=f"{_TEXTS}:user_computation",
        lowering="torch_xla._XLAC.lowering",
    ),
    "torch_xla._XLAC.lowering": same(
        "xla_dynamo.torch_xla.forms.lowering_context", "LoweringContext"
    ),
}
