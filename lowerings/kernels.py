"""The table of kernels: what rules may call in place of operations that XLA compiles.

`xla_dynamo.kernels` fills it, one file for each kernel. Rules ask `call` for the results of a
kernel, and write StableHLO operations where they get None.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.operation_names import call_target
from xla_dynamo.lowerings.builders.specifications import Specification
from xla_dynamo.lowerings.builders.values import Value, dtype_of
from xla_dynamo.lowerings.table import Context


class Kernel(Specification):
    """A kernel of a library; an object is the specification of one call.

    Attributes:
        name: what rules ask for.
        platforms: PJRT's names of those that it runs on.
        libraries: by the dtype of a call's first operand, the libraries that it needs (names of
            `lowerings.target`). Other dtypes it does not take.
        target: the target of its custom calls, if it shares that with no other kernel.
        takes_images: whether its operands are images with the channels innermost in memory, for
            `put_channels_last`.
        is_bounded: whether programs have calls of it before their sizes are bounded: it has a rule
            in `lowerings.bounded.kernel_calls`.
    """

    name: ClassVar[str]
    platforms: ClassVar[tuple[str, ...]] = ("cpu",)
    libraries: ClassVar[Mapping[torch.dtype, frozenset[str]]] = {}
    target: ClassVar[str] = ""
    takes_images: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False

    @classmethod
    def accept(cls, ctx: Context, *operands: Any, **settings: Any) -> Self | None:
        """The specification of a call that the kernel is to compute; None if it is not to.

        The libraries for the dtype are there. An operand may be None.
        """
        raise NotImplementedError

    def emit(self, ctx: Context, *operands: Any) -> Any:
        """Write the call, on the operands that `accept` was given; returns its results."""
        raise NotImplementedError


class PackedKernel(Kernel):
    """A kernel that a program runs by a handle, with weights in a layout of its own.

    It takes the place of another kernel's calls whose operands, but the first, are computed from
    parameters alone (`passes.pack_weights`).

    Attributes:
        replaces: the name of the other kernel.
        reads_plain: the library that a program needs for calls whose other operands are no such
            values: a plan then reads all operands at each call. "" if it takes none.
    """

    replaces: ClassVar[str]
    reads_plain: ClassVar[str] = ""

    @property
    def packs(self) -> bool:
        """Whether a frozen weight is to be packed, and not read as it is."""
        return True

    @property
    def plans(self) -> bool:
        """Whether a call whose operands are all plain is to be a plan, if the kernel reads such."""
        return True

    def calls_of(self, op: ir.Operation) -> Sequence[tuple[ir.Operation, "PackedKernel"]]:
        """The calls that compute a call whose operands are all plain, which comes last of them.

        Those that bring an operand into another layout are written in front of it. A kernel may
        write another call in its place, and erase what that computes too.
        """
        return [(op, self)]

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a call of the other kernel; None if this one does not take it."""
        raise NotImplementedError

    def absorb(self, result: Value) -> tuple[Value, Sequence[Value], Self]:
        """What else a call of one result may compute: another value in place of that.

        Returns:
            That value, the operands that it needs beside the call's, and its specification.
        """
        return result, (), self

    @staticmethod
    def emit_handle(
        number: int, operands: Sequence[Value], types: Sequence[ir.Type]
    ) -> Sequence[Value]:
        """Write a call by a handle, whose number is among the handles of the first operand.

        Returns its results, which have these types.
        """
        raise NotImplementedError

    def packed(self, *weights: torch.Tensor) -> Any:
        """Pack the weights; returns an object whose `plan` the handle is the address of.

        Without weights the plan reads all operands at each call.
        """
        raise NotImplementedError


KERNELS: dict[str, type[Kernel]] = {}
_K = TypeVar("_K", bound=type[Kernel])


def register(kernel: _K) -> _K:
    """Put a kernel into the table.

    Raises:
        ValueError: another one has its name.
    """
    if kernel.name in KERNELS:
        raise ValueError(f"there is a kernel {kernel.name!r} already")
    KERNELS[kernel.name] = kernel
    return kernel


def call(ctx: Context, name: str, *operands: Any, **settings: Any) -> Any:
    """The results of a call of a kernel; None if the program cannot call it, or it does not pay."""
    kernel = KERNELS.get(name)
    if kernel is None or ctx.platform not in kernel.platforms:
        return None
    needed, known = kernel.libraries.get(dtype_of(operands[0])), ctx.libraries
    if kernel.is_bounded and ctx.target.bounded and ctx.target.partitions == 1:
        known |= ctx.target.called_later
    if needed is None or not needed <= known:
        return None
    specification = kernel.accept(ctx, *operands, **settings)
    return None if specification is None else specification.emit(ctx, *operands)


def forms_of_calls(module: ir.Module) -> set[str]:
    """What the calls of kernels in a module are: configurations, and types of operands and results.

    What a call of another form does, no kernel has checked.
    """
    found = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if (target := call_target(op)) is not None:
            config = op.attributes.get("backend_config")
            if is_plan(op) or kernel_of(op) is not None:
                operands = ", ".join(str(x.type) for x in op.operands)
                results = ", ".join(str(x.type) for x in op.results)
                found.add(f"{target} {config} on ({operands}) -> ({results})")
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def is_plan(op: ir.Operation) -> bool:
    """Whether a custom call runs a plan, which reads its operands as they lie in memory."""
    config = op.attributes.get("backend_config")
    return isinstance(config, ir.DictAttr) and "script" in config


def kernel_of(op: ir.Operation) -> type[Kernel] | None:
    """The kernel that an operation is a call of, if it is one."""
    target = call_target(op)
    if target is None:
        return None
    config = op.attributes.get("backend_config")
    if isinstance(config, ir.DictAttr) and "kernel" in config:
        return KERNELS.get(ir.StringAttr(config["kernel"]).value.partition(":")[0])
    return next((kernel for kernel in KERNELS.values() if kernel.target == target), None)
