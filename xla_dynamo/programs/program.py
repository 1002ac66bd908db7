"""The result of lowering a graph, as data: a StableHLO module, and how a call binds to it.

No field is a function: `execution` reads a program and acts, and `storage` writes it to disk.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir

from xla_dynamo.graphs.output_views import ViewStep
from xla_dynamo.lowerings.builders.dtypes import dtype_name, torch_dtype
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.builders.values import dtype_of, shape_of
from xla_dynamo.lowerings.passes.pack_weights import Packed
from xla_dynamo.programs.layouts import InputLayout, Restride

# Strides of some results, by their number.
Strides: TypeAlias = Mapping[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """A program argument that is the graph's `index`-th input.

    Attributes:
        index: the number of the input.
        layout: how it becomes the argument.
        axes: the axes of the program's mesh that divide each dimension of the argument; none for
            one that is whole on each device.
    """

    index: int
    layout: InputLayout
    axes: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """A tensor of the graph: a literal, or one that may change between calls."""

    tensor: torch.Tensor
    is_literal: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """A graph output: a program result or a view of one, an input or a view of one, or a number.

    Attributes:
        result: the index of the program result, or None.
        view: the (size, stride, offset) of a view of a result.
        input: the index of the graph input, or None.
        replay: the views of the input that make the output, one of another.
        as_view: whether autograd takes the output for a view of the input.
        number: what else the output is.
    """

    result: int | None = None
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    input: int | None = None
    replay: tuple[ViewStep, ...] = ()
    as_view: bool = True
    number: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Mutation:
    """The graph's `index`-th input takes the value of an output when the call is over."""

    index: int
    output: Output


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """An operator that torch runs on results when the program is over: a check, a print."""

    op: Any
    args: tuple[Output, ...]
    kwargs: Mapping[str, Output]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The arguments of the operator."""
        return (*self.args, *self.kwargs.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """The values that another program computes from parameters and buffers alone.

    Attributes:
        keys: of each value. Values of equal keys are equal, whatever sizes a program is for.
        module: computes those of `computed`; None if there are none.
        inputs: the arguments of `module`.
        computed: the keys of its results.
        takes_negative_zero: whether the last argument of `module` is -0.0, f32[].
        packed: those that the program reads by handles, in an array of them that comes behind the
            values of `keys`; none if there are none.
        written_as: as in `Program`, of `module`.
    """

    keys: tuple[str, ...]
    module: ir.Module | None
    inputs: tuple[Input, ...]
    computed: tuple[str, ...]
    takes_negative_zero: bool
    packed: tuple[Packed, ...] = ()
    written_as: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A StableHLO module and how a call binds to its arguments and results.

    The module's arguments come in the order of the first attributes; the new values of donated
    inputs are results behind all others, of their arguments' shapes.

    Attributes:
        module: the StableHLO module.
        donations: inputs whose memory takes their new value.
        inputs: the other inputs, without parameters and buffers.
        static_inputs: the parameters and buffers.
        constants: tensors of the graph.
        uses_rng: whether a seed, u64[1], comes next.
        frozen: the values computed from parameters and buffers alone, which come next.
        takes_negative_zero: whether the last argument is -0.0, f32[].
        results: how many results the module has.
        outputs: the graph's outputs.
        mutations: the inputs that change but cannot be donated.
        effects: the operators that torch runs when the program is over.
        restrides: how exported results get the strides that were promised, by their number.
        host_results: results, by number, that are tensors of the CPU wherever the others are.
        calls_torch: whether the module calls kernels of torch.
        chosen_strides: the strides of outputs, by number, that do not have the traced ones.
        largest: the largest tensor that the graph makes: its bytes, and where the user made it.
        mesh: the axes, by name and size, of the devices that the program is divided over, in their
            order; () for a program of one device.
        written_as: of a program from a file, the digest of the module's text when it was written,
            by which its executable is known in the disk cache; else "". Read, the text is another:
            attributes that have their defaults are left out.
    """

    module: ir.Module
    donations: tuple[Input, ...]
    inputs: tuple[Input, ...]
    static_inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    uses_rng: bool
    frozen: Frozen | None
    takes_negative_zero: bool
    results: int
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...]
    effects: tuple[Effect, ...]
    restrides: Mapping[int, Restride]
    host_results: tuple[int, ...]
    calls_torch: bool
    chosen_strides: Strides
    largest: tuple[int, str] | None
    mesh: tuple[tuple[str, int], ...] = ()
    written_as: str = ""


def argument_types(program: Program) -> list[tuple[tuple[int, ...], str]]:
    """The shape and the dtype, by its name, of each argument of a program's module."""
    arguments = main_of(program.module).entry_block.arguments
    return [(shape_of(a), dtype_name(dtype_of(a))) for a in arguments]


def result_types(program: Program) -> list[tuple[tuple[int, ...], str]]:
    """The shape and the dtype, by its name, of each result of a program's module."""
    types = [ir.RankedTensorType(t) for t in main_of(program.module).type.results]
    return [(tuple(t.shape), dtype_name(torch_dtype(t.element_type))) for t in types]
