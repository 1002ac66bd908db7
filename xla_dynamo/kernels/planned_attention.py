"""torch's fused attention and its gradients by plans: in XLA's threads, with no Python in the way.

A script calls the C functions that torch has for compiled code (torch/csrc/inductor/aoti_torch):
it makes tensors over XLA's memory, calls the kernel, and copies what the kernel returns.
"""

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.kernels.attention import HEADS_LAST, SUMS, Attention, AttentionCall
from xla_dynamo.kernels.attention_gradients import AttentionGradients
from xla_dynamo.kernels.library_calls import ScriptKernel
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.target import TORCH_PLANS
from xla_dynamo.runtime.cpu import call_scripts, onednn, torch_functions
from xla_dynamo.runtime.cpu.call_scripts import NULL, Argument, Plan, Script, number, slot
from xla_dynamo.runtime.cpu.shares import threads
from xla_dynamo.torch_private import invert_perm

_ROW_MAJOR = (0, 1, 2, 3)


class _PlannedCall(ScriptKernel):
    """A call of a kernel of torch's for attention.

    Attributes:
        kernel: the kernel in Python whose calls it takes the place of.
        function: the name of torch's function.
    """

    reads_plain = TORCH_PLANS
    kernel: ClassVar[type[AttentionCall]]
    function: ClassVar[str]

    call: AttentionCall

    @property
    def packs(self) -> bool:
        """It has no weights."""
        return False

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a call in Python; None if torch has no such function."""
        if not torch_functions.has(cls.function):
            return None
        config = ir.DictAttr(op.attributes["backend_config"])
        text = ir.StringAttr(config["kernel"]).value.partition(":")[2]
        return cls(cls.kernel.read(text))  # type: ignore[call-arg]

    def packed(self, *weights: torch.Tensor) -> "_Attending":
        """The plan of a call."""
        return _Attending(self)

    def operands(self) -> list[tuple[tuple[int, ...], Sequence[int], torch.dtype]]:
        """The shapes of the operands, the orders of their dimensions in memory, and dtypes."""
        raise NotImplementedError

    def results(self) -> list[tuple[tuple[int, ...], Sequence[int], torch.dtype]]:
        """The same of the results."""
        raise NotImplementedError


@register
@dataclasses.dataclass(frozen=True)
class PlannedAttention(_PlannedCall):
    """softmax(query @ key.mT * scale + mask) @ value, and the logarithms of the sums."""

    name = "planned_attention"
    replaces = Attention.name
    kernel = Attention
    function = "_scaled_dot_product_flash_attention_for_cpu"

    call: Attention

    def operands(self) -> list[tuple[tuple[int, ...], Sequence[int], torch.dtype]]:
        one = self.call
        return [(shape, HEADS_LAST, one.dtype) for shape in (one.query, one.key, one.value)]

    def results(self) -> list[tuple[tuple[int, ...], Sequence[int], torch.dtype]]:
        one = self.call
        return [(one.output, HEADS_LAST, one.dtype), (one.sums, SUMS, torch.float32)]


@register
@dataclasses.dataclass(frozen=True)
class PlannedAttentionGradients(_PlannedCall):
    """The gradients of query, key and value."""

    name = "planned_attention_gradients"
    replaces = AttentionGradients.name
    kernel = AttentionGradients
    function = "_scaled_dot_product_flash_attention_for_cpu_backward"

    call: AttentionGradients

    def operands(self) -> list[tuple[tuple[int, ...], Sequence[int], torch.dtype]]:
        one = self.call
        shapes = one.output, one.query, one.key, one.value, one.output
        found = [(shape, HEADS_LAST, one.dtype) for shape in shapes]
        return [*found, (one.sums, SUMS, torch.float32)]

    def results(self) -> list[tuple[tuple[int, ...], Sequence[int], torch.dtype]]:
        return self.operands()[1:4]


class _Attending:
    """The plan of a call, and what its scripts read.

    Attributes:
        plan: it reads and writes what this object holds.
    """

    def __init__(self, form: _PlannedCall) -> None:
        """Write the scripts.

        Raises:
            NativeCodeError: nothing can execute them here.
        """
        call_scripts.register(onednn.threads())
        self._form, self._held = form, list[Any]()
        parts = form.call.shares(threads())
        self.plan = Plan([(self._script(part), None) for part in parts], threads() - 1)

    def _script(self, part: Any) -> Script:
        """The script of a range of the batch and of heads."""
        one, script = self._form.call, Script()
        free = iter(range(call_scripts.FIRST_FREE, call_scripts.NUMBER_OF_SLOTS))
        operands = list(self._form.operands())
        if one.mask is not None:
            operands.append((one.mask, _ROW_MAJOR, one.mask_dtype))
        memory = [*operands, *self._form.results()]
        made = [
            self._tensor(script, next(free), part, index, *described)
            for index, described in enumerate(memory, 1)
        ]
        given, results = made[: len(operands)], made[len(operands) :]
        mask = NULL
        if one.mask is not None:
            mask = call_scripts.place_of_slot(given.pop())
        returned = [next(free) for _ in results]
        scale = NULL
        if one.scale is not None:
            scale = self._array(ctypes.c_double, [one.scale])
        script.call(
            torch_functions.kernel(self._form.function),
            *map(slot, given),
            number(int(one.causal)),
            mask,
            scale,
            *map(call_scripts.place_of_slot, returned),
        )
        for target, source in zip(results, returned, strict=True):
            script.call(torch_functions.function("copy_"), slot(target), slot(source), NULL)
        for place in [*made, *returned]:
            script.call(torch_functions.function("delete_tensor_object"), slot(place))
        return script

    def _tensor(
        self,
        script: Script,
        place: int,
        part: Any,
        index: int,
        shape: Sequence[int],
        order: Sequence[int],
        dtype: torch.dtype,
    ) -> int:
        """Have a script make the tensor of a part of an operand or result; returns its slot."""
        dense = torch.empty([shape[d] for d in order], device="meta", dtype=dtype)
        whole = dense.permute(invert_perm(order))
        tensor = self._form.call.part(whole, part)
        offset = tensor.storage_offset() * dtype.itemsize
        script.call(
            torch_functions.function("create_tensor_from_blob_v2"),
            slot(index, offset),
            number(tensor.dim()),
            self._array(ctypes.c_int64, tensor.shape),
            self._array(ctypes.c_int64, tensor.stride()),
            NULL,
            number(torch_functions.dtype(dtype)),
            NULL,  # of the CPU
            NULL,
            call_scripts.place_of_slot(place),
            NULL,  # strided
            NULL,
            NULL,
        )
        return place

    def _array(self, kind: Any, values: Sequence[Any]) -> Argument:
        """The address of numbers in memory that this object holds."""
        made = (kind * len(values))(*values)
        self._held.append(made)
        return number(ctypes.addressof(made))
