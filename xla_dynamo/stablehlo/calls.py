"""A call of an exported program: its leaves checked, its outputs put together; without torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_dynamo.stablehlo.signature import Signature


def leaves_of_call(
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dtype_of: Callable[[Any], str | None],
) -> list[Any]:
    """The leaves of a call's inputs.

    Args:
        signature: the signature of the program.
        args: the positional arguments of the call.
        kwargs: the named ones.
        dtype_of: the name of the dtype of an array or tensor; None for anything else.

    Raises:
        TypeError: the inputs are nested otherwise, or a leaf has another dtype or is no array.
        ValueError: a constant has another value.
    """
    leaves = signature.input_tree.flatten_call(args, kwargs)
    for number, (leaf, given) in enumerate(zip(signature.inputs, leaves, strict=True)):
        if leaf.spec is None:
            # By their text: a NaN is itself, and -0.0 is not 0.0.
            if type(given) is not type(leaf.value) or repr(given) != repr(leaf.value):
                raise ValueError(
                    f"{signature.input_tree.path(number)} is {given!r}, and the program was "
                    f"exported for {leaf.value!r} there"
                )
        elif (dtype := dtype_of(given)) != leaf.spec.dtype:
            shown = type(given).__name__ if dtype is None else f"of dtype {dtype}"
            raise TypeError(
                f"{signature.input_tree.path(number)} is {shown}, and the program takes {leaf.spec}"
            )
    return leaves


def made_outputs(
    signature: Signature, results: Sequence[Any], dimensions: Mapping[str, int]
) -> Any:
    """What a call returns, nested as the model's outputs, from the module's results."""
    leaves: list[Any] = []
    for leaf in signature.outputs:
        if leaf.result is not None:
            leaves.append(results[leaf.result])
        else:
            leaves.append(leaf.value if leaf.size is None else leaf.size.at(dimensions))
    return signature.output_tree.unflatten(leaves)
