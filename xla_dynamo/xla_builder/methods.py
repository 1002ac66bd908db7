"""Methods of `Op`, made of the operations in the table."""

import inspect
from typing import Any

from xla_dynamo.xla_builder.table import OPERATIONS

_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD
_EMPTY = inspect.Parameter.empty


def method(operation: str, parameters: str = "") -> Any:
    """A method of `Op` that writes an operation, of which the `Op` is the first operand.

    Args:
        operation: the name of the operation in the table.
        parameters: the names of the method's parameters, in their order, with the defaults of the
            function in the table. What is given as an `Op` is an operand; a function is made the
            computation of two scalars of the element type.
    """
    signature = _signature(operation, parameters)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        operands, others = [], {}
        for name, value in list(given.arguments.items())[1:]:
            if isinstance(value, type(self)):
                operands.append(value)
            elif callable(value):
                scalar = self.shape().as_scalar()
                others[name] = self.make_computation(name, value, (scalar, scalar))
            else:
                others[name] = value
        return self._make(operation, *operands, **others)

    call.__name__ = call.__qualname__ = operation
    call.__doc__ = OPERATIONS[operation].__doc__ or f"XLA's operation {operation}."
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _signature(operation: str, parameters: str) -> inspect.Signature:
    known = inspect.signature(OPERATIONS[operation]).parameters
    made: list[inspect.Parameter] = []
    needed = False  # a parameter behind this one has no default
    for name in reversed(parameters.split()):
        default = known[name].default if name in known and not needed else _EMPTY
        needed |= default is _EMPTY
        made.insert(0, inspect.Parameter(name, _KIND, default=default))
    return inspect.Signature([inspect.Parameter("self", _KIND), *made])


_OF_CONVOLUTIONS = "feature_group_count batch_group_count precision_config"
_NUMBERS = (
    "input_batch_dimension input_feature_dimension kernel_input_feature_dimension "
    "kernel_output_feature_dimension output_batch_dimension output_feature_dimension "
    "input_spatial_dimensions kernel_spatial_dimensions output_spatial_dimensions"
)
_SCATTERING = (
    "source init_value window_dimensions window_strides select_computation "
    "scatter_computation padding"
)


class Methods:
    """Operators and methods that each write one operation of the table."""

    __hash__ = None  # type: ignore[assignment]

    def shape(self) -> Any:
        """The shape of the value."""
        raise NotImplementedError

    # --- operators ------------------------------------------------------------------------------

    __add__ = method("Add", "rhs")
    __sub__ = method("Sub", "rhs")
    __mul__ = method("Mul", "rhs")
    __matmul__ = method("Dot", "rhs")
    __truediv__ = method("Div", "rhs")
    __pow__ = method("Pow", "rhs")
    __mod__ = method("Rem", "rhs")
    __and__ = method("And", "rhs")
    __or__ = method("Or", "rhs")
    __xor__ = method("Xor", "rhs")
    __lshift__ = method("ShiftLeft", "rhs")
    __rshift__ = method("ShiftRight", "rhs")
    __le__ = method("Le", "rhs")
    __lt__ = method("Lt", "rhs")
    __ge__ = method("Ge", "rhs")
    __gt__ = method("Gt", "rhs")
    __eq__ = method("Eq", "rhs")
    __ne__ = method("Ne", "rhs")
    __neg__ = method("Neg")
    __invert__ = __not__ = method("Not")

    # --- elements -------------------------------------------------------------------------------

    abs = method("Abs")
    acos = method("Acos")
    asin = method("Asin")
    atan = method("Atan")
    ceil = method("Ceil")
    clz = method("Clz")
    conj = method("Conj")
    cos = method("Cos")
    cosh = method("Cosh")
    erf = method("Erf")
    erfc = method("Erfc")
    exp = method("Exp")
    expm1 = method("Expm1")
    floor = method("Floor")
    imag = method("Imag")
    log = method("Log")
    log1p = method("Log1p")
    real = method("Real")
    rsqrt = method("Rsqrt")
    sin = method("Sin")
    sinh = method("Sinh")
    sqrt = method("Sqrt")
    square = method("Square")
    tan = method("Tan")
    tanh = method("Tanh")
    erfinv = erfinf = method("ErfInv")  # PyTorch/XLA has the second name
    atan2 = method("Atan2", "other")
    max = method("Max", "other")
    min = method("Min", "other")
    cast = method("Convert", "to_type")
    bitcast = method("BitcastConvert", "to_type")
    clamp = method("Clamp", "min_value max_value")
    select = method("Select", "true_value false_value")

    # --- places of elements ---------------------------------------------------------------------

    reshape = method("Reshape", "sizes dimensions inferred_dimension")
    dynamic_reshape = method("DynamicReshape", "sizes")
    broadcast = method("Broadcast", "sizes")
    broadcast_in_dim = method("BroadcastInDim", "sizes dimensions")
    transpose = method("Transpose", "permutation")
    rev = method("Rev", "dimensions")
    pad = method("Pad", "value config")
    slice = method("Slice", "start_indices limit_indices strides")
    slice_in_dim = method("SliceInDim", "start_index limit_index dimno stride")
    dynamic_slice = method("DynamicSlice", "start_indices slice_sizes")
    dynamic_update_slice = method("DynamicUpdateSlice", "update start_indices")
    gather = method(
        "Gather",
        "start_indices offset_dims collapsed_slice_dims start_index_map index_vector_dim "
        "indices_are_sorted slice_sizes",
    )
    scatter = method(
        "Scatter",
        "scatter_indices updates computation update_window_dims inserted_window_dims "
        "scatter_dims_to_operand_dims index_vector_dim indices_are_sorted unique_indices",
    )
    get_dimension_size = method("GetDimensionSize", "dimension")
    set_dimension_size = method("SetDimensionSize", "size dimension")
    get_tuple_element = method("GetTupleElement", "index")

    # --- products, windows, reductions ----------------------------------------------------------

    dot = method("Dot", "rhs precision_config")
    dot_general = method("DotGeneral", "rhs dimension_numbers precision_config")
    triangular_solve = triangualr_solve = method(  # PyTorch/XLA has the second name
        "TriangularSolve", "b left_side lower unit_diagonal transpose_a"
    )
    conv = method(
        "Conv",
        "kernel window_strides feature_group_count batch_group_count padding precision_config",
    )
    conv_with_general_padding = method(
        "ConvWithGeneralPadding", f"kernel window_strides padding {_OF_CONVOLUTIONS}"
    )
    conv_with_general_dimensions = method(
        "ConvWithGeneralDimensions",
        f"kernel window_strides {_NUMBERS} padding {_OF_CONVOLUTIONS}",
    )
    conv_general = method(
        "ConvGeneral", f"kernel window_strides padding {_NUMBERS} {_OF_CONVOLUTIONS}"
    )
    conv_general_dilated = method(
        "ConvGeneralDilated",
        f"kernel window_strides padding lhs_dilation rhs_dilation {_NUMBERS} {_OF_CONVOLUTIONS}",
    )
    reduce = method("Reduce", "init_value computation dimensions")
    reduce_all = method("ReduceAll", "init_value computation")
    reduce_window = method(
        "ReduceWindow", "init_value computation window_dimensions window_strides padding"
    )
    max_pool = method(
        "MaxPool",
        "kernel_size stride batch_dimension feature_dimension spatial_dimensions padding",
    )
    select_and_scatter = method("SelectAndScatter", _SCATTERING)
    select_and_scatter_with_general_padding = method(
        "SelectAndScatterWithGeneralPadding", _SCATTERING
    )
