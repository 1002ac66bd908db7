"""The steps of a call: import the tensors, execute the program, export its results.

`calls` runs the three one after another. A caller that has buffers already, or wants buffers and
no tensors, takes the middle step alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import torch

from xla_dynamo.errors import ExecutionError
from xla_dynamo.execution.buffer_calls import BufferCall, buffer_call
from xla_dynamo.execution.constants import negative_zero, own_arguments
from xla_dynamo.execution.device_tensors import import_and_export
from xla_dynamo.execution.divided_steps import divided_buffer_call, divided_steps
from xla_dynamo.execution.donated_inputs import DonatedInputs
from xla_dynamo.execution.failures import failure
from xla_dynamo.execution.frozen_inputs import FrozenValues
from xla_dynamo.execution.known_buffers import KnownBuffers, StaticInputs
from xla_dynamo.execution.restriding import preparation, restriding
from xla_dynamo.programs.program import Program, argument_types
from xla_dynamo.runtime.buffers import exporter
from xla_dynamo.runtime.cpu.deferred_signals import after_signals
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.placement import Placement

Tensors: TypeAlias = list[torch.Tensor]


class Steps(NamedTuple):
    """The three steps of a call, in their order.

    Attributes:
        import_inputs: takes the graph's inputs and torch's stream (None where there are none);
            returns the buffers of all the program's arguments, and the tensors that it changes in
            their own memory.
        execute: takes the buffers; returns those of the results, each in a list of its own. It
            raises ExecutionError for buffers of other shapes or dtypes, which PJRT would take.
        run: the same without the check, for buffers that `import_inputs` made; what PJRT raises is
            not translated.
        export: takes the results, the tensors that are changed, and the stream; returns the
            program's results as tensors.
        on_buffers: makes all three in one, for a caller that has buffers and wants buffers; None
            where torch has to do with the inputs or the results.
    """

    import_inputs: Callable[[list[Any], int | None], tuple[list[Buffer], Tensors]]
    execute: Callable[[Sequence[Buffer]], list[list[Buffer]]]
    run: Callable[[Sequence[Buffer]], list[list[Buffer]]]
    export: Callable[[list[list[Buffer]], Tensors, int | None], Tensors]
    on_buffers: Callable[[], BufferCall | None]


def steps_of(
    program: Program,
    executable: Executable,
    keeps_inputs: bool,
    frozen_values: FrozenValues | None,
) -> Steps:
    """The steps of a program's calls; `frozen_values` has what `Program.frozen` asks for."""
    placement = executable.placement
    if len(placement.devices) > 1:
        run = executable.execute
        if placement.tensors is not None:
            import_inputs, export = import_and_export(program, executable, placement.tensors)
        else:
            import_inputs, export = divided_steps(program, executable)
        return Steps(
            import_inputs, run, run, export, lambda: divided_buffer_call(program, executable)
        )
    donated = None
    if program.donations:
        read = [given.index for given in (*program.inputs, *program.static_inputs)]
        held = [constant.tensor for constant in program.constants]
        donated = DonatedInputs(placement, program.donations, read, held)
    run = after_signals(executable.execute) if program.calls_torch else executable.execute
    if placement.tensors is not None:
        import_inputs, export = import_and_export(program, executable, placement.tensors)
        return Steps(import_inputs, _checked(program, run), run, export, lambda: None)
    return Steps(
        _importer(program, executable, donated, keeps_inputs, frozen_values),
        _checked(program, run),
        run,
        _exporter(program, donated, placement),
        lambda: buffer_call(program, placement, run),
    )


def _importer(
    program: Program,
    executable: Executable,
    donated: DonatedInputs | None,
    keeps_inputs: bool,
    frozen_values: FrozenValues | None,
) -> Callable[[list[Any], int | None], tuple[list[Buffer], Tensors]]:
    """The first step. It is one function, without calls of others, since every µs counts here."""
    placement = executable.placement
    fresh = [
        (a.index, KnownBuffers(placement, preparation(a.layout), keeps=keeps_inputs))
        for a in program.inputs
    ]
    static = None
    if program.static_inputs:
        indices = [given.index for given in program.static_inputs]
        prepare = [preparation(given.layout) for given in program.static_inputs]
        static = StaticInputs(placement, indices, prepare)
    own = own_arguments(program, placement)
    frozen = None
    if program.frozen is not None and frozen_values is not None:
        frozen = frozen_values.of(program.frozen, placement)
    last = [negative_zero(placement)] if program.takes_negative_zero else []
    device, on_gpu = placement.torch_device, placement.has_streams

    def import_inputs(args: list[Any], stream: int | None) -> tuple[list[Buffer], Tensors]:
        changing: Tensors = []
        buffers: list[Buffer] = []
        if donated is not None:
            changing, buffers = donated.buffers(args, stream)
        for index, known in fresh:
            tensor = args[index]
            if on_gpu and tensor.device != device:  # a 0-d CPU tensor among others
                tensor = tensor.to(device)
            address = tensor.data_ptr()
            buffer = known.by_address.get(address)
            if buffer is None:
                buffer = known.load_if_it_comes_again(tensor, address, stream)
            buffers.append(buffer)
        if static is not None:
            buffers += static.buffers(args, stream)
        if own is not None:
            buffers += own(stream)
        if frozen is not None:
            buffers += frozen(args, stream)
        if last:
            buffers += last
        return buffers, changing

    return import_inputs


def _checked(
    program: Program, run: Callable[[Sequence[Buffer]], list[list[Buffer]]]
) -> Callable[[Sequence[Buffer]], list[list[Buffer]]]:
    wanted: list[tuple[tuple[int, ...], str]] = []

    def execute(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
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


def _exporter(
    program: Program, donated: DonatedInputs | None, placement: Placement
) -> Callable[[list[list[Buffer]], Tensors, int | None], Tensors]:
    changes = [(index, restriding(given)) for index, given in program.restrides.items()]
    tensor_of = exporter(placement)
    if placement.has_streams:
        changes += [(index, torch.Tensor.cpu) for index in program.host_results]

    def export(buffers: list[list[Buffer]], changing: Tensors, stream: int | None) -> Tensors:
        results = []
        try:
            for (buffer,) in buffers:
                results.append(tensor_of(buffer, stream))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise failure(error, program) from error
        if donated is not None:
            first = len(results) - len(changing)
            donated.write_back(changing, results[first:])
            del results[first:]
        for index, change in changes:
            results[index] = change(results[index])
        return results

    return export
