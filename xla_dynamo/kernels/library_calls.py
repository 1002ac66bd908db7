"""Custom calls of libraries, with operands and results in the layouts that the library wants."""

from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import permuted_type, row_major_layout
from xla_dynamo.lowerings.builders.shapes import transpose
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import Kernel, PackedKernel, register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN, ONEDNN_BFLOAT16, ONEDNN_PLANS
from xla_dynamo.runtime.cpu import call_scripts, foreign_calls, onednn, script_layout
from xla_dynamo.runtime.cpu.call_scripts import Argument, Plan, Script
from xla_dynamo.runtime.cpu.script_layout import MOST_ADDRESSES
from xla_dynamo.runtime.cpu.shares import threads
from xla_dynamo.torch_private import invert_perm

LARGEST_IN_ONEDNN = 2**31 - 1  # elements: oneDNN counts in 32 bits
ONEDNN_LIBRARIES = {
    torch.float32: frozenset({ONEDNN}),
    torch.bfloat16: frozenset({ONEDNN_BFLOAT16}),
}


def may_plan(ctx: Context) -> bool:
    """Whether a call may become a plan: where it is written into the main function itself."""
    owner = ir.InsertionPoint.current.block.owner
    in_main = isinstance(owner, func.FuncOp) and owner.name.value == "main"
    return in_main and ONEDNN_PLANS in ctx.libraries


class PythonKernel(Kernel, foreign_calls.Kernel):
    """A kernel that runs in Python, in threads of XLA's (`runtime.cpu.foreign_calls`)."""

    def call(
        self,
        ctx: Context,
        operands: Sequence[Value],
        permutations: Sequence[Sequence[int]],
        types: Sequence[ir.Type],
        result_permutations: Sequence[Sequence[int]],
    ) -> list[Value]:
        """Write a call, as `library_call` does."""
        ctx.calls[self.name] += 1
        text = ir.StringAttr.get(f"{self.name}:{self.text()}")
        return library_call(
            foreign_calls.TARGET,
            ir.DictAttr.get({"kernel": text}),
            operands,
            permutations,
            types,
            result_permutations,
            **_by_ffi(),
        )

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self:
        """The specification that `call` has written."""
        config = ir.DictAttr(op.attributes["backend_config"])
        return cls.read(ir.StringAttr(config["kernel"]).value.partition(":")[2])


_K = TypeVar("_K", bound=type[PythonKernel])


def python_kernel(kernel: _K) -> _K:
    """Register a kernel for rules, and for the programs that call it."""
    foreign_calls.kernel(kernel.name)(kernel.read)
    return register(kernel)


def library_call(
    target: str,
    config: ir.Attribute,
    operands: Sequence[Value],
    permutations: Sequence[Sequence[int]],
    types: Sequence[ir.Type],
    result_permutations: Sequence[Sequence[int]],
    **attributes: Any,
) -> list[Value]:
    """The results of a call, of these types.

    Transposes before and behind the call make its operands and results row-major. They cancel each
    other and those of the model, where XLA would meet other layouts at the call by copies.

    Args:
        target: the name that XLA knows the function by.
        config: its configuration, in the form that it reads.
        operands: its operands.
        permutations: of each operand, the dimensions from the outermost in memory to the innermost.
        types: of the results.
        result_permutations: the same for the results.
        attributes: others of the operation.
    """
    given = [transpose(x, p) for x, p in zip(operands, permutations, strict=True)]
    made = [permuted_type(t, p) for t, p in zip(types, result_permutations, strict=True)]
    op = hlo.CustomCallOp(
        made,
        given,
        target,
        backend_config=config,
        operand_layouts=ir.ArrayAttr.get([row_major_layout(x.type) for x in given]),
        result_layouts=ir.ArrayAttr.get([row_major_layout(t) for t in made]),
        **attributes,
    )
    results = zip(op.results, result_permutations, strict=True)
    return [transpose(result, invert_perm(p)) for result, p in results]


def script_calls(number: int, operands: Sequence[Value], types: Sequence[ir.Type]) -> list[Value]:
    """A call of a plan of `runtime.cpu.call_scripts`, on operands that are row-major.

    Args:
        number: of the plan, among those of the first operand.
        operands: the array of plans, and those of the plan.
        types: of the results, which are row-major too.

    Raises:
        ValueError: there are more operands than the handler takes.
    """
    if len(operands) + len(types) > MOST_ADDRESSES:
        raise ValueError(f"a call has more than {MOST_ADDRESSES} operands and results")
    op = hlo.CustomCallOp(
        list(types),
        list(operands),
        script_layout.TARGET,
        backend_config=ir.DictAttr.get({"script": ir.DenseI64ArrayAttr.get([number])}),
        operand_layouts=ir.ArrayAttr.get([row_major_layout(x.type) for x in operands]),
        result_layouts=ir.ArrayAttr.get([row_major_layout(t) for t in types]),
        **_by_ffi(),
    )
    return list(op.results)


class ScriptKernel(PackedKernel):
    """A kernel whose handles are plans of `runtime.cpu.call_scripts`."""

    @staticmethod
    def emit_handle(
        number: int, operands: Sequence[Value], types: Sequence[ir.Type]
    ) -> Sequence[Value]:
        """Write the call of a plan."""
        return script_calls(number, operands, types)


class FunctionPlan:
    """The plan of calls of one function, which threads make side by side.

    Attributes:
        plan: each of its scripts is a call.
    """

    def __init__(self, function: Any, parts: Sequence[Sequence[Argument]], *, stays: bool) -> None:
        """Write the scripts.

        Args:
            function: of ctypes, with a name for messages.
            parts: the arguments of each call.
            stays: whether the threads stay for a while, since another such call follows soon.

        Raises:
            NativeCodeError: nothing can execute scripts here.
        """
        call_scripts.register(onednn.threads())
        scripts = [(Script(), None) for _ in parts]
        for (script, _), arguments in zip(scripts, parts, strict=True):
            script.call(function, *arguments)
        self.plan = Plan(scripts, threads() - 1, stays=stays)


def _by_ffi() -> dict[str, ir.Attribute]:
    """The attribute of calls whose handlers are of XLA's foreign function interface."""
    return {"api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4)}


def numbers(values: Iterable[int]) -> list[str]:
    """Numbers as JSON has 64-bit ones in protocol buffers."""
    return [str(v) for v in values]
