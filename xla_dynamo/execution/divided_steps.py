"""The steps of a call of a program that is divided over the devices of a mesh."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from xla_dynamo.execution.buffer_calls import BufferCall, binding_of
from xla_dynamo.execution.constants import draw_seed
from xla_dynamo.execution.divided_tensors import divided_buffer, new_divided_buffer
from xla_dynamo.execution.failures import failure
from xla_dynamo.execution.restriding import restriding
from xla_dynamo.lowerings.passes.contraction_barriers import NEGATIVE_ZERO
from xla_dynamo.programs.layouts import input_layout
from xla_dynamo.programs.program import Input, Program, result_types
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.sharded_buffers import assembled, export_divided, spread

Tensors = list[torch.Tensor]


def divided_steps(
    program: Program, executable: Executable
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The first and the last step of a divided program's calls."""
    return _importer(program, executable.placement), _exporter(program, executable)


def divided_buffer_call(program: Program, executable: Executable) -> BufferCall | None:
    """The call of a divided program on buffers; None where torch has to do with them.

    Buffers of one device, or divided otherwise than the program reads them, are divided anew.
    """
    binding = binding_of(program)
    if binding is None:
        return None
    placement, mesh = executable.placement, program_mesh(program, executable.placement)
    given = (*program.donations, *program.inputs, *program.static_inputs)
    taken = [(a.index, sharding_of(a, mesh)) for a in given]
    own = own_arguments_over(program, placement)
    assemble = assembler(program, executable)

    def call(
        buffers: Sequence[Buffer], stream: int | None
    ) -> tuple[list[Buffer], dict[int, Buffer]]:
        arguments = [spread(buffers[index], sharding, placement) for index, sharding in taken]
        results = assemble(executable.execute(arguments + own()))
        return (
            [results[place] for place in binding.outputs],
            {index: results[place] for index, place in binding.changed.items()},
        )

    return call


def assembler(
    program: Program, executable: Executable
) -> Callable[[list[list[Buffer]]], list[Buffer]]:
    """The function that makes one buffer of the pieces of each result."""
    placement, mesh = executable.placement, program_mesh(program, executable.placement)
    shapes = [shape for shape, _ in result_types(program)]
    tilings = executable.result_tilings()

    def assemble(results: list[list[Buffer]]) -> list[Buffer]:
        return [
            assembled(pieces, tiling, shape, mesh, placement)
            for pieces, tiling, shape in zip(results, tilings, shapes, strict=True)
        ]

    return assemble


def program_mesh(program: Program, placement: Placement) -> Mesh:
    """The mesh of a divided program that runs on these devices."""
    ids = [device.id for device in placement.devices]
    return Mesh(ids, [size for _, size in program.mesh], [name for name, _ in program.mesh])


def sharding_of(given: Input, mesh: Mesh) -> Sharding:
    """How an argument is divided."""
    return Sharding(mesh, given.axes or ((),) * len(given.layout.permutation))


def own_arguments_over(program: Program, placement: Placement) -> Callable[[], list[Buffer]]:
    """A function that gives a divided program's constants, its seed, and -0.0."""
    mesh = program_mesh(program, placement)
    constants = [c.tensor.to(placement.torch_device) for c in program.constants]
    zeros = [NEGATIVE_ZERO.to(placement.torch_device)] * program.takes_negative_zero

    def whole(tensor: torch.Tensor, get: Callable[..., Buffer]) -> Buffer:
        sharding = Sharding(mesh, ((),) * tensor.ndim)
        return get(tensor, input_layout(tensor), sharding, placement)

    def own() -> list[Buffer]:
        buffers = [whole(constant, divided_buffer) for constant in constants]
        if program.uses_rng:
            seed = draw_seed(placement).to(placement.torch_device)
            buffers.append(whole(seed, new_divided_buffer))
        return buffers + [whole(zero, divided_buffer) for zero in zeros]

    return own


def _importer(
    program: Program, placement: Placement
) -> Callable[[list[Any], int | None], tuple[list[Buffer], Tensors]]:
    mesh = program_mesh(program, placement)
    # What is divided was marked, and so comes again.
    given = [(a, divided_buffer if any(a.axes) else new_divided_buffer) for a in program.inputs]
    given += [(a, divided_buffer) for a in program.static_inputs]
    taken = [(a.index, a.layout, sharding_of(a, mesh), get) for a, get in given]
    own = own_arguments_over(program, placement)

    def import_inputs(args: list[Any], stream: int | None) -> tuple[list[Buffer], Tensors]:
        buffers = [
            get(_on(args[index], placement), layout, sharding, placement)
            for index, layout, sharding, get in taken
        ]
        return buffers + own(), []

    return import_inputs


def _on(tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    device = placement.torch_device
    return tensor if tensor.device.type == device.type else tensor.to(device)


def _exporter(
    program: Program, executable: Executable
) -> Callable[[list[list[Buffer]], Tensors, int | None], Tensors]:
    placement = executable.placement
    changes = {number: restriding(given) for number, given in program.restrides.items()}
    shapes = [shape for shape, _ in result_types(program)]
    tilings = executable.result_tilings()

    def export(buffers: list[list[Buffer]], changing: Tensors, stream: int | None) -> Tensors:
        results = []
        try:
            for pieces, tiling, shape in zip(buffers, tilings, shapes, strict=True):
                results.append(export_divided(pieces, tiling, shape, placement))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise failure(error, program) from error
        for index, change in changes.items():
            results[index] = change(results[index])
        return results

    return export
