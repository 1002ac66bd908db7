"""The name of a node in messages: its operator with its operands' types, and the user's line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError, UnsupportedDtype, UnsupportedOperator, XlaDynamoError
from xla_dynamo.graphs.node_notes import path_of
from xla_dynamo.graphs.source_lines import describe, source_line
from xla_dynamo.lowerings.builders.dtypes import dtype_name
from xla_dynamo.torch_private import OpOverload, decomposition_table, dtype_abbrs, schema

Node: TypeAlias = torch.fx.Node
# A text in a node's meta that its operations have as the name of their location.
LOCATION = "mlir_location"
_Show: TypeAlias = Callable[[Any], str]


def location(node: Node) -> ir.Location:
    """The node's name, module and line, or the text it was given, for profiles and dumps.

    HLO has the module's path where it has the names of functions.
    """
    if LOCATION in node.meta:
        return ir.Location.name(node.meta[LOCATION])
    line = source_line(node)
    if line is None:
        return ir.Location.name(node.name)
    place = ir.Location.file(line.file, line.line, 0)
    if path := path_of(node):
        place = ir.Location.name(path, place)
    return ir.Location.name(node.name, place)


def signature(node: Node, values: Mapping[Node, Any]) -> str:
    """A node as aten.add.Tensor(f32[8,3], 2, alpha=1)."""

    def show(argument: Any) -> str:
        if isinstance(argument, torch.fx.Node):
            value = values.get(argument)
            return argument.name if value is None else _short_type(value)
        return _shown(argument, show)

    return _call(node.target, node.args, node.kwargs, show)


def call_signature(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call of an operator, as `signature` shows a node."""

    def show(argument: Any) -> str:
        if isinstance(argument, torch.Tensor):
            return _short_type(argument)
        return _shown(argument, show)

    return _call(op, args, kwargs, show)


def _call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], show: _Show) -> str:
    shown = [show(a) for a in args] + [f"{key}={show(a)}" for key, a in kwargs.items()]
    return f"{op}({', '.join(shown)})"


def _shown(argument: Any, show: _Show) -> str:
    if isinstance(argument, list | tuple):
        return "[" + ", ".join(map(show, argument)) + "]"
    return repr(argument)


def no_rule(node: Node, values: Mapping[Node, Any]) -> UnsupportedOperator:
    """The error of an operator that is not in the table."""
    if isinstance(node.target, OpOverload) and schema(node.target).is_mutable:
        advice = (
            "the operator changes its argument, and graphs must be functional: call "
            ".run_decompositions() on an exported program first"
        )
    elif node.target in decomposition_table:
        advice = "PyTorch has a decomposition: add it to xla_dynamo/decompositions/table.py"
    else:
        advice = "give it a rule with @xla_dynamo.lowers(op)"
    return UnsupportedOperator(
        f"no lowering for {signature(node, values)}{describe(node)}\n"
        f"  {advice}\n  (docs/adding-a-lowering.md)"
    )


def refused(node: Node, values: Mapping[Node, Any], reason: str) -> UnsupportedOperator:
    """The error of a call that the operator's rule does not do."""
    return UnsupportedOperator(
        f"{signature(node, values)}: {reason}{describe(node)}\n"
        '  options={"fallback": "eager"} runs it in torch'
    )


def checked(node: Node, values: Mapping[Node, Any], emit: Callable[[], Any]) -> Any:
    """Run emit() with the user's line added to whatever it raises."""
    try:
        return emit()
    except UnsupportedDtype as error:
        raise UnsupportedDtype(f"{signature(node, values)}: {error}{describe(node)}") from error
    except XlaDynamoError as error:
        raise type(error)(f"{error}{describe(node)}") from error
    except Exception as error:
        raise LoweringError(
            f"the rule of {signature(node, values)} failed: {type(error).__name__}: {error}"
            f"{describe(node)}"
        ) from error


def _short_type(value: Any) -> str:
    """f32[8,3] for a tensor, as torch prints graphs; but a bool is bool to users, and not b8."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    name = dtype_name(value.dtype)
    short = name if value.dtype is torch.bool else dtype_abbrs.get(value.dtype, name)
    return f"{short}[{','.join(str(n) for n in value.shape)}]"
