"""torch's fused attention and its gradients by plans: in XLA's threads, with no Python in the way.

A script calls the C functions that torch has for compiled code (torch/csrc/inductor/aoti_torch):
it makes tensors over XLA's memory, calls the kernel, and copies what the kernel returns. Tensors
have strides. So query, key and value are read where one product has left all three, and their
gradients are written where the gradient of that product's result is wanted.
"""

import ctypes
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.kernels.attention import HEADS_LAST, SUMS, Attention, AttentionCall
from xla_dynamo.kernels.attention_gradients import AttentionGradients
from xla_dynamo.kernels.library_calls import FunctionPlan, ScriptKernel
from xla_dynamo.lowerings.builders.specifications import Specification
from xla_dynamo.lowerings.builders.strided_views import joined_results, viewed
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import PackedKernel, register
from xla_dynamo.lowerings.target import TORCH_PLANS
from xla_dynamo.runtime.cpu import call_scripts, masked_attention, onednn, torch_functions
from xla_dynamo.runtime.cpu.call_scripts import NULL, Plan, Script, number, slot
from xla_dynamo.runtime.cpu.shares import threads
from xla_dynamo.runtime.cpu.torch_tensors import delete_tensors, held_array, make_tensor
from xla_dynamo.torch_private import invert_perm

_ROW_MAJOR = (0, 1, 2, 3)
# Multiplications below which to call other threads costs more than they do.
_FEWEST_DIVIDED = 1 << 18


class _Array(NamedTuple):
    """An operand or result of the kernel in Python.

    Attributes:
        shape: its shape.
        order: of its dimensions in memory.
        dtype: its dtype.
    """

    shape: tuple[int, ...]
    order: Sequence[int]
    dtype: torch.dtype

    def as_it_lies(self) -> torch.Tensor:
        """It in memory of its own, without data, with its dimensions as they are there."""
        shape = [self.shape[d] for d in self.order]
        return torch.empty(shape, dtype=self.dtype, device="meta")


@dataclasses.dataclass(frozen=True)
class Lying(Specification):
    """How a tensor lies in an operand or result of a plan.

    Attributes:
        memory: the number of that operand or result.
        strides: of the tensor's dimensions, in elements.
        offset: where it begins, in elements.
    """

    memory: int
    strides: tuple[int, ...]
    offset: int


def _lying(array: _Array, memory: int, lies: torch.Tensor) -> Lying:
    """How an array lies, which `lies` so there with its dimensions in their order in memory."""
    tensor = lies.permute(invert_perm(list(array.order)))
    return Lying(memory, tensor.stride(), int(tensor.storage_offset()))


@dataclasses.dataclass(frozen=True)
class _PlannedCall(ScriptKernel):
    """A call of a kernel of torch's for attention.

    Attributes:
        kernel: the kernel in Python whose calls it takes the place of.
        function: the name of torch's function.
        call: that call.
        given: how its operands but a mask lie in those of the plan.
        made: how its results lie in those of the plan.
    """

    reads_plain = TORCH_PLANS
    kernel: ClassVar[type[AttentionCall]]
    function: ClassVar[str]

    call: AttentionCall
    given: tuple[Lying, ...]
    made: tuple[Lying, ...]

    def check(self) -> None:
        """Each tensor has strides."""
        for lying, arrays in ((self.given, self.operands()), (self.made, self.results())):
            ranks = [len(one.shape) for one in arrays]
            if [len(one.strides) for one in lying] != ranks:
                self.refuse(f"tensors of ranks {ranks} lie so: {lying}")

    @property
    def packs(self) -> bool:
        """It has no weights."""
        return False

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a call in Python; None if torch has no such function."""
        if not torch_functions.has(cls.function):
            return None
        call = cls.kernel.of_call(op)
        arrays = cls.operands_of(call), cls.results_of(call)  # type: ignore[arg-type]
        alone = [
            tuple(_lying(one, i, one.as_it_lies()) for i, one in enumerate(some)) for some in arrays
        ]
        return cls(call, *alone)  # type: ignore[call-arg]

    def calls_of(self, op: ir.Operation) -> Sequence[tuple[ir.Operation, PackedKernel]]:
        """The call on the values whose memory its operands lie in.

        It writes its results into the memory of one value, if nothing else reads them.
        """
        arrays, memories, given = self.operands(), list[Value](), list[Lying]()
        for value, array in zip(op.operands, arrays, strict=False):
            base, lies = viewed(value)
            if lies.stride(-1) != 1:  # torch's kernels want the features side by side
                base, lies = value, array.as_it_lies()
            if base not in memories:
                memories.append(base)
            given.append(_lying(array, memories.index(base), lies))
        memories += list(op.operands)[len(arrays) :]
        together = joined_results(op)
        types, made = [result.type for result in op.results], self.made
        if together is not None and all(lies.stride(-1) == 1 for lies in together.lie):
            types = [together.value.type]
            pairs = zip(self.results(), together.lie, strict=True)
            made = tuple(_lying(array, 0, lies) for array, lies in pairs)
        with ir.InsertionPoint(op), op.location:
            names = "backend_config", "api_version"
            same = {name: op.attributes[name] for name in names}
            new = hlo.CustomCallOp(types, memories, self.kernel.name, **same).operation
        if len(types) < len(op.results):
            assert together is not None
            together.replace(new.results[0])
        else:
            for result, other in zip(op.results, new.results, strict=True):
                result.replace_all_uses_with(other)
        op.erase()
        return [(new, dataclasses.replace(self, given=tuple(given), made=made))]

    def packed(self, *weights: torch.Tensor) -> "FunctionPlan | _Attending":
        """The plan of a call."""
        return _Attending(self)

    def operands(self) -> list[_Array]:
        """The operands but a mask, as the kernel in Python has them."""
        return self.operands_of(self.call)

    def results(self) -> list[_Array]:
        """The results, as the kernel in Python has them."""
        return self.results_of(self.call)

    @staticmethod
    def operands_of(call: Any) -> list[_Array]:
        """The operands of a call but a mask."""
        raise NotImplementedError

    @staticmethod
    def results_of(call: Any) -> list[_Array]:
        """The results of a call."""
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

    def packed(self, *weights: torch.Tensor) -> "FunctionPlan | _Attending":
        """The plan of a call: by our own function for a few queries."""
        return _of_few(self) if self.call.is_of_few else _Attending(self)

    @staticmethod
    def operands_of(call: Attention) -> list[_Array]:
        """Query, key and value."""
        return [_Array(s, HEADS_LAST, call.dtype) for s in (call.query, call.key, call.value)]

    @staticmethod
    def results_of(call: Attention) -> list[_Array]:
        """The output, and the logarithms of the sums."""
        sums = _Array(call.sums, SUMS, torch.float32)
        return [_Array(call.output, HEADS_LAST, call.dtype), sums]


@register
@dataclasses.dataclass(frozen=True)
class PlannedAttentionGradients(_PlannedCall):
    """The gradients of query, key and value."""

    name = "planned_attention_gradients"
    replaces = AttentionGradients.name
    kernel = AttentionGradients
    function = "_scaled_dot_product_flash_attention_for_cpu_backward"

    call: AttentionGradients

    @staticmethod
    def operands_of(call: AttentionGradients) -> list[_Array]:
        """The gradient of the output, query, key, value, the output, and the logarithms."""
        shapes = call.output, call.query, call.key, call.value, call.output
        found = [_Array(shape, HEADS_LAST, call.dtype) for shape in shapes]
        return [*found, _Array(call.sums, SUMS, torch.float32)]

    @staticmethod
    def results_of(call: AttentionGradients) -> list[_Array]:
        """The three gradients."""
        return PlannedAttentionGradients.operands_of(call)[1:4]


def _of_few(form: PlannedAttention) -> FunctionPlan:
    """The plan of a call with a few queries, by our own function."""
    one, size = form.call, form.call.dtype.itemsize
    count = len({lying.memory for lying in form.given})
    mask_strides: tuple[int, ...] = (0, 0, 0)
    mask = NULL
    if one.mask is not None:
        # The mask is row-major. Where it is the same for all it does not move.
        steps = torch.empty(one.mask, device="meta").stride()
        pairs = zip(one.mask[:3], steps[:3], strict=True)
        mask_strides = tuple(0 if n == 1 else step for n, step in pairs)
        mask = slot(1 + count)  # behind the array of plans
    first = 1 + count + (one.mask is not None)
    output, sums = form.made
    function = masked_attention.function(
        one.dtype,
        None if one.mask is None else one.mask_dtype,
        (*one.query[:2], one.key[1], one.query[2], one.key[2], one.query[3]),
        one.query[3] ** -0.5 if one.scale is None else one.scale,
        one.causal,
        (
            *(lying.strides[:3] for lying in form.given),
            mask_strides,
            output.strides[:3],
            sums.strides,
        ),
    )
    addresses = [
        *(slot(1 + lying.memory, lying.offset * size) for lying in form.given),
        mask,
        slot(first + output.memory, output.offset * size),
        slot(first + sums.memory, sums.offset * torch.float32.itemsize),
    ]
    is_small = math.prod(one.query) * one.key[2] < _FEWEST_DIVIDED
    parts = 1 if is_small else 2 * threads()  # some begin later than others
    arguments = [[*addresses, number(part), number(parts)] for part in range(parts)]
    return FunctionPlan(function, arguments, stays=True)


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
        form, one, script = self._form, self._form.call, Script()
        free = iter(range(call_scripts.FIRST_FREE, call_scripts.NUMBER_OF_SLOTS))
        first = 1 + len({lying.memory for lying in form.given})  # behind the array of plans
        given = [
            self._tensor(script, next(free), part, 1, array, lying)
            for array, lying in zip(form.operands(), form.given, strict=True)
        ]
        mask = NULL
        if one.mask is not None:
            array = _Array(one.mask, _ROW_MAJOR, one.mask_dtype)
            lying = _lying(array, 0, array.as_it_lies())
            place = self._tensor(script, next(free), part, first, array, lying)
            mask = call_scripts.place_of_slot(place)
            given.append(place)
            first += 1
        results = [
            self._tensor(script, next(free), part, first, array, lying)
            for array, lying in zip(form.results(), form.made, strict=True)
        ]
        operands = given[: len(form.given)]
        returned = [next(free) for _ in results]
        scale = NULL
        if one.scale is not None:
            scale = held_array(self._held, ctypes.c_double, [one.scale])
        script.call(
            torch_functions.kernel(self._form.function),
            *map(slot, operands),
            number(int(one.causal)),
            mask,
            scale,
            *map(call_scripts.place_of_slot, returned),
        )
        for target, source in zip(results, returned, strict=True):
            script.call(torch_functions.function("copy_"), slot(target), slot(source), NULL)
        delete_tensors(script, [*given, *results, *returned])
        return script

    def _tensor(
        self, script: Script, place: int, part: Any, first: int, array: _Array, lying: Lying
    ) -> int:
        """Have a script make the tensor of a part of an operand or result; returns its slot.

        The memory that it lies in is counted from the slot `first`.
        """
        whole = torch.empty_strided(array.shape, lying.strides, dtype=array.dtype, device="meta")
        tensor = self._form.call.part(whole, part)
        offset = (lying.offset + tensor.storage_offset()) * array.dtype.itemsize
        address = slot(first + lying.memory, offset)
        make_tensor(script, place, address, tensor, self._held)
        return place
