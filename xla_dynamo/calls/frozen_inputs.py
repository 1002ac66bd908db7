"""Values computed from parameters alone, kept until a parameter changes (`freeze`).

A changed parameter shows in torch's version counter or in its address (see `changes`). Batch norm
in training changes its running statistics without counting, so small tensors are compared bit by
bit (0.3 us each).
"""

import dataclasses
import itertools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.calls.packed_values import pack
from xla_dynamo.calls.supply import supply_of
from xla_dynamo.lowerings.passes.pack_weights import Packed
from xla_dynamo.memory.changes import epoch, watch_optimizers
from xla_dynamo.memory.memory import Supply
from xla_dynamo.memory.one_device import OneDevice
from xla_dynamo.options import Options
from xla_dynamo.programs.program import Frozen, FrozenValue, Handles, Input
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.weak_table import WeakTable
from xla_dynamo.torch_private import version_of

# Arrays of handles to packed weights, by what was packed. Each entry has the buffer of the array. A
# weight may be packed from values of several frozen programs: so an entry also has the handle
# tables of the other programs, which keeps these alive, and their ids, which tell whether the entry
# is current.
HandleTable: TypeAlias = dict[tuple[Packed, ...], tuple[list[int], Buffer, Any]]
_address_of = torch.Tensor.data_ptr
# The most elements of a tensor that is compared bit by bit, and of such a vector.
_SMALL, _LONGEST = 1 << 12, 1 << 20


@dataclasses.dataclass(slots=True)
class _Known:
    """The results for the parameters as they were."""

    state: list[Any]
    results: list[Buffer | None]  # None: nobody reads it any more
    others: Sequence[torch.Tensor]  # no other object gets their ids while they are held
    memory: list[torch.Tensor]  # and nobody else the addresses
    watched: list[Any]
    bits: list[bytes]
    handles: HandleTable


class FrozenProgram:
    """A program that computes values from parameters and buffers, when these have changed."""

    def __init__(self, placement: Placement, frozen: Frozen, executable: Executable) -> None:
        """Take what the executable reads among a graph's inputs."""
        indices = [slot.index for slot in frozen.arguments if isinstance(slot, Input)]
        self._pick = operator.itemgetter(*indices, indices[-1])
        memory = OneDevice(placement)
        self._supply = supply_of(frozen.arguments, memory, memory.inputs)
        self._execute = executable.execute
        watch_optimizers()
        # Several modules may share the program, as the layers of a stack do.
        self._table: WeakTable[int, _Known] = WeakTable()
        self._known = self._table.values

    def values(
        self, args: Sequence[Any], stream: int | None, wanted: Collection[int]
    ) -> tuple[list[Any], HandleTable]:
        """The values for the parameters among a call's arguments, at least those of some numbers.

        And the handles of values that were made for these parameters.
        """
        tensors = self._pick(args)
        state = [*map(_address_of, tensors), *map(id, tensors), epoch()]
        try:
            state += map(version_of, tensors)
        except RuntimeError:  # an inference tensor, whose changes nobody counts
            state.append(object())
        handles: HandleTable = {}
        known = self._known.get(state[0])
        if known is not None and known.state == state and known.bits == _bits(known.watched):
            if None not in known.results or all(known.results[i] is not None for i in wanted):
                return known.results, known.handles
            handles = known.handles
        watched = [_array_of(tensor) for tensor in tensors if _is_watched(tensor)]
        bits = _bits(watched)  # before they are read: a change meanwhile is one to be seen
        executed = self._execute(self._supply(args, stream))
        results: list[Any] = [buffer for (buffer,) in executed]
        memory = [tensor.detach() for tensor in tensors]
        others = [tensor for tensor in tensors if tensor is not tensors[0]]
        self._keep(tensors[0], _Known(state, results, others, memory, watched, bits, handles))
        return results, handles

    def _keep(self, owner: torch.Tensor, new: _Known) -> None:
        self._table.put_alone(new.state[0], owner, new)  # its storage may have been replaced


def _is_watched(tensor: torch.Tensor) -> bool:
    """Whether a tensor is compared bit by bit: a running statistic may be one."""
    on_cpu = tensor.device.type == "cpu" and tensor.is_floating_point()
    return on_cpu and tensor.numel() <= (_LONGEST if tensor.dim() == 1 else _SMALL)


def _array_of(tensor: torch.Tensor) -> Any:
    """A view of the memory of a tensor."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(integers[tensor.itemsize]).numpy()


def _bits(arrays: list[Any]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


ValueIndex: TypeAlias = tuple[FrozenProgram, int]


class FrozenValues:
    """The values of a graph: the executables for its sizes share those that are the same."""

    def __init__(self) -> None:
        """Begin without any."""
        self.keys: dict[str, tuple[FrozenProgram, int]] = {}

    def compile(self, frozen: Frozen | None, placement: Placement, options: Options) -> float:
        """Compile what computes new ones, if any are; returns the seconds it took."""
        if frozen is None:
            return 0.0
        asked = options.xla_options
        executable = Executable(frozen.module, placement, asked, frozen.written_as)
        executable.note("frozen values", {})
        program = FrozenProgram(placement, frozen, executable)
        self.keys.update({key: (program, i) for i, key in enumerate(frozen.keys)})
        return executable.compile_seconds

    def of(self, slots: Sequence[FrozenValue | Handles], placement: Placement) -> Supply:
        """A function that gives the buffers of a program's frozen values and handles."""
        indices = [self.keys[slot.key] for slot in slots if isinstance(slot, FrozenValue)]
        for slot in slots:
            if isinstance(slot, Handles):
                assert slot is slots[-1], "handles stand behind the frozen values"
                return self._with_handles(indices, slot.calls, placement)
        wanted = _by_program(indices)

        def buffers(args: Sequence[Any], stream: int | None) -> list[Buffer]:
            found = {p: p.values(args, stream, numbers)[0] for p, numbers in wanted.items()}
            return [found[program][index] for program, index in indices]

        return buffers

    def _with_handles(
        self, indices: Sequence[ValueIndex], packed: tuple[Packed, ...], placement: Placement
    ) -> Supply:
        """The same for a program that reads some of the values by handles."""
        reads = [[self.keys[key] for key in one.keys] for one in packed]
        sources = list(dict.fromkeys(itertools.chain(*reads)))
        wanted, every = _by_program(indices), _by_program([*indices, *sources])
        programs = list(every)

        def buffers(args: Sequence[Any], stream: int | None) -> list[Buffer]:
            found = {p: p.values(args, stream, wanted.get(p, ())) for p in programs}
            handles = found[programs[0]][1]
            # Those that were made for the same values of the other programs.
            others = [id(found[p][1]) for p in programs[1:]]
            known = handles.get(packed)
            if known is None or known[0] != others:
                found = {p: p.values(args, stream, numbers) for p, numbers in every.items()}
                values = [[found[program][0][index] for program, index in read] for read in reads]
                known = others, pack(packed, values, placement), [found[p][1] for p in programs]
                found[programs[0]][1][packed] = known
                for program, index in set(sources) - set(indices):
                    found[program][0][index] = None  # only its packed form is read
            return [*(found[program][0][index] for program, index in indices), known[1]]

        return buffers


def _by_program(indices: Iterable[ValueIndex]) -> dict[FrozenProgram, list[int]]:
    """The numbers of values, by the programs that compute them."""
    found: dict[FrozenProgram, list[int]] = {}
    for program, number in indices:
        found.setdefault(program, []).append(number)
    return found
