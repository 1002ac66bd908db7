"""Portable artifacts of StableHLO: read, refined to the sizes of a call, written as versions ask.

Nothing here imports torch.
"""

import io
import re
from collections.abc import Collection, Sequence
from typing import Any

from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.errors import CompileError, StorageError
from xla_dynamo.runtime.jaxlib_private import initialize_lapack


def artifact_of(module: ir.Module, version: str | None = None) -> bytes:
    """A module as a portable artifact of pure StableHLO, of a version as "1.4.0" or the newest.

    CHLO becomes StableHLO: calls of composites where XLA has the operation, else what it consists
    of.

    Raises:
        StorageError: there is no such version, or it has not all operations of the module.
    """
    newest, oldest = hlo.get_current_version(), hlo.get_minimum_version()
    version = version or newest
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or not (
        _numbers(oldest) <= _numbers(version) <= _numbers(newest)
    ):
        raise StorageError(
            f"no StableHLO version {version!r}: this jaxlib writes {oldest} to {newest}"
        )
    with module.context:
        copy = ir.Module.parse(_bytecode(module))  # since its operations become those of VHLO
        try:
            return mlir.serialize_portable_artifact(copy, version)
        except Exception as error:  # jaxlib raises its own kinds
            raise StorageError(
                f"StableHLO {version} cannot hold the program: {_first_lines(error)}; a later "
                "version may"
            ) from error


# What the text of a module has of a location: a text, in front of a line of a file or alone.
_TEXT = r'"(?:[^"\\]|\\.)*"'
_OF_FILES = re.compile(rf" {_TEXT}\((?:#loc\d*|{_TEXT}:\d+:\d+)\)")
_ALONE = re.compile(rf" {_TEXT}$", flags=re.MULTILINE)


def text_of(module: ir.Module) -> str:
    """A module as text, with the texts that operations have as locations behind them.

    Not those of lines of files, which every operation may have.
    """
    noted = module.operation.get_asm(enable_debug_info=True, pretty_debug_info=True)
    kept = [line for line in noted.splitlines() if not line.startswith("#loc")]
    text = _OF_FILES.sub("", "\n".join(kept)).replace(" [unknown]", "")
    return text if _ALONE.search(text) else str(module)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _first_lines(error: Exception) -> str:
    found = re.search(r"failed to legalize operation '([\w.]+)'", str(error))
    if found:
        return f"it has not the operation {found[1]}"
    return str(error).strip().partition("\n")[0][:300]


def module_of(artifact: bytes) -> ir.Module:
    """Read a portable artifact, in a context of its own.

    Raises:
        StorageError: it is none, or of a later version than this jaxlib knows.
    """
    if b"lapack" in artifact:
        initialize_lapack()
    with make_ir_context() as context:
        try:
            return hlo.deserialize_portable_artifact(context, artifact)
        except Exception as error:
            written = re.search(rb"StableHLO_v([\d.]+)", artifact[:64])
            version = f" of StableHLO {written[1].decode()}" if written else ""
            raise StorageError(
                f"the artifact{version} cannot be read by StableHLO {hlo.get_current_version()}, "
                "which this jaxlib has: it is damaged, or of a later version"
            ) from error


def refined(module: ir.Module, shapes: Sequence[Sequence[int]]) -> ir.Module:
    """The module of static sizes that a module with dynamic ones is for arguments of these shapes.

    Raises:
        CompileError: some shape in it does not follow from them.
    """
    main = _main(module)
    block = main.entry_block
    with module.context, ir.Location.unknown():
        _call_decompositions(module)
        for argument, shape in zip(block.arguments, shapes, strict=True):
            given = argument.type
            static = ir.RankedTensorType.get(list(shape), given.element_type)
            if static == given:
                continue
            # What reads it has dynamic types until the shapes are refined.
            argument.set_type(static)
            with ir.InsertionPoint.at_block_begin(block):
                dynamic = hlo.convert(given, argument)
            argument.replace_all_uses_except(dynamic, dynamic.owner.operation)
        types = [argument.type for argument in block.arguments]
        function = ir.FunctionType.get(types, main.type.results)
        main.attributes["function_type"] = ir.TypeAttr.get(function)
        try:
            bytecode = mlir.refine_polymorphic_shapes(_bytecode(module), False, True)
        except Exception as error:  # jaxlib raises its own kinds
            raise CompileError(
                f"the program cannot have arguments of the shapes {[list(s) for s in shapes]}: "
                f"{_first_lines(error)}"
            ) from error
    with make_ir_context():
        return ir.Module.parse(bytecode)


def returning(
    artifact: bytes, results: Sequence[int], default_overloads: Collection[str] = ()
) -> bytes:
    """The artifact of a program with some of another one's results, by number, in an order.

    Custom calls of "namespace.operator", of these namespaces, become those of
    "namespace.operator.default".
    """
    module = module_of(artifact)

    def name_overload(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if target.count(".") == 1 and target.partition(".")[0] in default_overloads:
                op.attributes["call_target_name"] = ir.StringAttr.get(f"{target}.default")
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(name_overload)
    main = _main(module)
    *_, last = main.entry_block.operations
    kept = [last.operands[number] for number in results]
    with module.context, ir.Location.unknown():
        with ir.InsertionPoint(last):
            func.ReturnOp(kept)
        last.operation.erase()
        types = ir.FunctionType.get(main.type.inputs, [value.type for value in kept])
        main.attributes["function_type"] = ir.TypeAttr.get(types)
        if "res_attrs" in main.attributes:
            del main.attributes["res_attrs"]
    return artifact_of(module)


def _call_decompositions(module: ir.Module) -> None:
    """Make calls of the composites of named regions, which are inlined; XLA has those of CHLO."""
    found = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.composite" and not _is_of_chlo(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        with ir.InsertionPoint(op):
            types = [result.type for result in op.results]
            call = func.CallOp(types, op.attributes["decomposition"], list(op.operands))
        for old, new in zip(op.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def _is_of_chlo(op: ir.Operation) -> bool:
    return ir.StringAttr(op.attributes["name"]).value.startswith("chlo.")


# Not that of `lowerings`, which imports torch: a folder runs without it.
def _bytecode(module: ir.Module) -> bytes:
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()


def _main(module: ir.Module) -> Any:
    (main,) = (
        op
        for op in module.body.operations
        if isinstance(op, func.FuncOp) and op.name.value == "main"
    )
    return main


def custom_calls(module: ir.Module) -> tuple[str, ...]:
    """The targets of a module's custom calls, in order, without those that are StableHLO's own."""
    found: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.custom_call":
            found.add(ir.StringAttr(op.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return tuple(sorted(name for name in found if not name.startswith("stablehlo.")))
