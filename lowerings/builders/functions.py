"""The functions of a module: finding them and their operations, and changing their types."""

import io
from collections.abc import Iterator, Mapping

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func


def bytecode_of(module: ir.Module) -> bytes:
    """A module in MLIR's bytecode, which depends on nothing but the module.

    `ir.Module.parse` makes a copy of it.
    """
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()


def main_of(module: ir.Module) -> func.FuncOp:
    """The public function of a module."""
    functions = (op for op in module.body.operations if isinstance(op, func.FuncOp))
    return next(op for op in functions if op.name.value == "main")


def merge(into: ir.Module, module: ir.Module, prefix: str) -> func.FuncOp:
    """Move a module's functions into another one under fresh private names; returns main."""
    functions = [op for op in module.body.operations if isinstance(op, func.FuncOp)]
    taken = {op.name.value for op in into.body.operations if isinstance(op, func.FuncOp)}
    taken |= {op.name.value for op in functions}
    main = main_of(module)
    for op in functions:
        old = op.name.value
        new = prefix if op == main else f"{prefix}_{old}"
        while new in taken:
            new += "_"
        taken.add(new)
        ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
        ir.SymbolTable.set_symbol_name(op, new)
        ir.SymbolTable.set_visibility(op, "private")
        remove_attributes(op)
    for op in functions:
        into.body.append(op)
    return main


def remove_attributes(function: func.FuncOp) -> None:
    """Remove the attributes of a function's arguments and results."""
    for attribute in ("arg_attrs", "res_attrs"):
        if attribute in function.attributes:
            del function.attributes[attribute]


def operations_of(function: func.FuncOp) -> list[ir.Operation]:
    """The operations of a function's body, without those nested in regions."""
    return [op.operation for op in function.entry_block.operations]


def operations_within(module: ir.Module) -> Iterator[ir.Operation]:
    """Every operation of a module, nested ones included and before those that contain them."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return iter(found)


def nested_operations(op: ir.Operation) -> list[ir.Operation]:
    """The operations in the regions of an operation, those that contain others last."""
    if not len(op.regions):
        return []
    found: list[ir.Operation] = []

    def visit(inner: ir.Operation) -> ir.WalkResult:
        found.append(inner)
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return found[:-1]


def values_read(op: ir.Operation) -> list[ir.Value]:
    """The values from outside of an operation that it and the operations in its regions read."""
    nested = nested_operations(op)
    own = {result for inner in nested for result in inner.results}
    for each in [op, *nested] if nested else []:
        own |= {a for region in each.regions for block in region.blocks for a in block.arguments}
    read = [v for each in (op, *nested) for v in each.operands]
    return [v for v in dict.fromkeys(read) if v not in own]


def has_uses(op: ir.Operation) -> bool:
    """Whether a result of an operation has a user."""
    return any(True for result in op.results for _ in result.uses)


def is_used(value: ir.Value) -> bool:
    """Whether a value has a user."""
    return any(True for _ in value.uses)


def update_type(function: func.FuncOp) -> None:
    """Set a function's type to that of its block's arguments and of its return."""
    block = function.entry_block
    *_, last = block.operations
    arguments, results = [a.type for a in block.arguments], [r.type for r in last.operands]
    type_ = ir.FunctionType.get(arguments, results)
    function.attributes["function_type"] = ir.TypeAttr.get(type_)


def add_argument(function: func.FuncOp, type_: ir.Type) -> ir.BlockArgument:
    """Add an argument to a function, behind the others."""
    argument = function.entry_block.add_argument(type_, ir.Location.unknown())
    if "arg_attrs" in function.attributes:
        none = ir.DictAttr.get({})
        function.arg_attrs = ir.ArrayAttr.get([*function.arg_attrs, none])
    update_type(function)
    return argument


def result_attributes(function: func.FuncOp) -> list[dict[str, ir.Attribute]]:
    """The attributes of each result of a function."""
    *_, last = function.entry_block.operations
    if "res_attrs" not in function.attributes:
        return [{} for _ in last.operands]
    given = function.attributes["res_attrs"]
    return [{named.name: named.attr for named in ir.DictAttr(a)} for a in ir.ArrayAttr(given)]


def set_result_attributes(function: func.FuncOp, given: list[dict[str, ir.Attribute]]) -> None:
    """Give each result of a function its attributes."""
    if any(given):
        function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in given])
    elif "res_attrs" in function.attributes:
        del function.attributes["res_attrs"]


def rebind(op: ir.Operation, known: Mapping[ir.Value, ir.Value]) -> None:
    """Replace operands of an operation, and of those in its regions, where others are known."""
    for number, operand in enumerate(op.operands):
        if operand in known:
            op.operands[number] = known[operand]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                rebind(inner.operation, known)
