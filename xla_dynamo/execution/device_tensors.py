"""Import and export for tensors of a device whose contents are PJRT buffers, without a copy."""

from collections.abc import Callable
from typing import Any

import jax
import torch

from xla_dynamo.execution.buffer_calls import own_geometries, strides_layout
from xla_dynamo.execution.constants import negative_zero, own_arguments
from xla_dynamo.execution.divided_steps import (
    assembler,
    own_arguments_over,
    program_mesh,
    sharding_of,
)
from xla_dynamo.execution.failures import failure
from xla_dynamo.execution.restriding import preparation, restriding
from xla_dynamo.programs.program import Input, Program
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.placement import DeviceTensors, Placement
from xla_dynamo.runtime.sharded_buffers import gathered, spread

Tensors = list[torch.Tensor]
Import = Callable[[list[Any], int | None], tuple[list[Buffer], Tensors]]
Export = Callable[[list[list[Buffer]], Tensors, int | None], Tensors]


def import_and_export(
    program: Program, executable: Executable, tensors: DeviceTensors
) -> tuple[Import, Export]:
    """The first and the last step of a program's calls."""
    assert program.frozen is None, "values of the device change where nobody counts"
    placement = executable.placement
    if len(placement.devices) > 1:
        assemble = assembler(program, executable)
        export = _exporter(program, placement, tensors)
        return (
            _divided_importer(program, placement, tensors),
            lambda results, changing, stream: export(
                [[buffer] for buffer in assemble(results)], changing, stream
            ),
        )
    return _importer(program, placement, tensors), _exporter(program, placement, tensors)


def _divided_importer(program: Program, placement: Placement, tensors: DeviceTensors) -> Import:
    every = (*program.inputs, *program.static_inputs)
    mesh = program_mesh(program, placement)
    shardings = [sharding_of(given, mesh) for given in every]
    own = own_arguments_over(program, placement)

    def import_inputs(args: list[Any], stream: int | None) -> tuple[list[Buffer], Tensors]:
        given = [_prepared(args[a.index], a) for a in every]
        buffers = tensors.buffers_of(given, ())
        pairs = zip(buffers, shardings, strict=True)
        return [spread(b, sharding, placement) for b, sharding in pairs] + own(), []

    return import_inputs


def _importer(program: Program, placement: Placement, tensors: DeviceTensors) -> Import:
    every = (*program.donations, *program.inputs, *program.static_inputs)
    donated = range(len(program.donations))
    own = own_arguments(program, placement)
    last = [negative_zero(placement)] if program.takes_negative_zero else []

    def import_inputs(args: list[Any], stream: int | None) -> tuple[list[Buffer], Tensors]:
        given = [_prepared(args[a.index], a) for a in every]
        buffers = tensors.buffers_of(given, donated)
        if own is not None:
            buffers += own(stream)
        return buffers + last, [args[d.index] for d in program.donations]

    return import_inputs


def _prepared(tensor: torch.Tensor, given: Input) -> torch.Tensor:
    """The tensor, or one in the layout that the program was compiled for."""
    if strides_layout(tensor.size(), tensor.stride()) == given.layout:
        return tensor
    prepare = preparation(given.layout)
    return tensor.contiguous() if prepare is None else prepare(tensor)


def _exporter(program: Program, placement: Placement, tensors: DeviceTensors) -> Export:
    geometries = own_geometries(program)[: program.results - len(program.donations)]
    restrides = {n: restriding(given) for n, given in program.restrides.items()}
    of_host = frozenset(program.host_results)

    def elsewhere(number: int, buffer: Buffer) -> torch.Tensor:
        try:
            memory = gathered(buffer, placement)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise failure(error, program) from error
        if number in restrides:
            memory = restrides[number](memory)
        return memory.cpu() if number in of_host else tensors.over_memory(memory)

    def export(buffers: list[list[Buffer]], changing: Tensors, stream: int | None) -> Tensors:
        made = []
        for number, geometry in enumerate(geometries):
            (buffer,) = buffers[number]
            if geometry is None or number in of_host:
                made.append(elsewhere(number, buffer))
            else:
                made.append(tensors.over(buffer, *geometry))
        for tensor, (buffer,) in zip(changing, buffers[len(made) :], strict=True):
            size, stride = tensor.size(), tensor.stride()
            tensors.put(tensor, tensors.over(buffer, size, stride))
        return made

    return export
