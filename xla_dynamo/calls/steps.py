"""The steps of a call: supply the arguments, execute the program, export its results.

`calls` runs the three one after another. A caller that has buffers already, or wants buffers and
no tensors, takes the middle step alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import torch

from xla_dynamo.calls.buffer_calls import BufferCall, buffer_call
from xla_dynamo.calls.device_tensors import inputs_of_device, results_on_device
from xla_dynamo.calls.failures import failure
from xla_dynamo.calls.frozen_inputs import FrozenValues
from xla_dynamo.calls.supply import InputParts, supply_of
from xla_dynamo.errors import ExecutionError
from xla_dynamo.memory.memory import Memory, Results, Supply
from xla_dynamo.memory.one_device import OneDevice
from xla_dynamo.memory.restriding import restriding
from xla_dynamo.memory.sharded import ShardedMemory
from xla_dynamo.programs.program import Constant, Donated, Program, argument_types
from xla_dynamo.runtime.cpu.deferred_signals import after_signals
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer

Tensors: TypeAlias = list[torch.Tensor]
Run: TypeAlias = Callable[[Sequence[Buffer]], Results]
Export: TypeAlias = Callable[[Results, Tensors, int | None], Tensors]


class Steps(NamedTuple):
    """The three steps of a call, in their order.

    Attributes:
        supply: takes the graph's inputs and torch's stream (None where there are none); returns the
            buffers of all the program's arguments.
        execute: takes the buffers; returns those of the results, each in a list of its own. It
            raises ExecutionError for buffers of other shapes or dtypes, which PJRT would take.
        run: the same without the check, for buffers that `supply` made; what PJRT raises is not
            translated.
        export: takes the results, the donated tensors, and the stream; returns the program's other
            results as tensors.
        donated: the inputs, by number, whose memory takes their new value.
        on_buffers: makes all three in one, for a caller that has buffers and wants buffers; None
            where torch has to do with the inputs or the results.
    """

    supply: Supply
    execute: Run
    run: Run
    export: Export
    donated: Sequence[int]
    on_buffers: Callable[[], BufferCall | None]


def memory_of(program: Program, executable: Executable, keeps_inputs: bool) -> Memory:
    """The memory of the devices that a program was compiled for."""
    placement = executable.placement
    if len(placement.devices) > 1:
        return ShardedMemory(program, executable)
    return OneDevice(placement, program.of(Constant), keeps_inputs)


def steps_of(
    program: Program,
    executable: Executable,
    keeps_inputs: bool,
    frozen_values: FrozenValues | None,
) -> Steps:
    """The steps of a program's calls; `frozen_values` has the program's frozen values."""
    memory = memory_of(program, executable, keeps_inputs)
    placement, tensors = memory.placement, memory.placement.tensors
    run = after_signals(executable.execute) if program.calls_torch else executable.execute
    inputs: InputParts = memory.inputs if tensors is None else inputs_of_device(memory, tensors)
    if tensors is None:
        export = _exporter(program, memory)
    else:
        export = results_on_device(program, memory, tensors)

    def frozen(slots: Sequence[Any]) -> Supply:
        assert frozen_values is not None
        assert tensors is None, "values of the device change where nobody counts"
        return frozen_values.of(slots, placement)

    return Steps(
        supply_of(program.arguments, memory, inputs, frozen),
        _checked(program, run),
        run,
        export,
        [slot.index for slot in program.of(Donated)],
        lambda: buffer_call(program, memory, run),
    )


def _checked(program: Program, run: Run) -> Run:
    wanted: list[tuple[tuple[int, ...], str]] = []

    def execute(buffers: Sequence[Buffer]) -> Results:
        if not wanted:
            wanted.extend(argument_types(program))
        given = [(tuple(buffer.shape), str(buffer.dtype)) for buffer in buffers]
        if given != wanted:
            raise ExecutionError(f"a program of arguments {wanted} was given buffers {given}")
        try:
            return run(buffers)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise failure(error, program) from error

    return execute


def _exporter(program: Program, memory: Memory) -> Export:
    slots = list(enumerate(program.results))
    changes = [(i, restriding(slot.restride)) for i, slot in slots if slot.restride is not None]
    if memory.placement.has_streams:
        changes += [(index, torch.Tensor.cpu) for index, slot in slots if slot.on_host]
    donated = program.of(Donated)
    first = len(program.results) - len(donated)

    def export(buffers: Results, changing: Tensors, stream: int | None) -> Tensors:
        try:
            results = memory.tensors(buffers[:first], stream)
            if donated:
                memory.write_back(donated, changing, buffers[first:], stream)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise failure(error, program) from error
        for index, change in changes:
            results[index] = change(results[index])
        return results

    return export
