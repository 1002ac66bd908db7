"""The result of lowering a graph, as data: a StableHLO module, and a slot for each of its values.

No field is a function: `execution` reads a program and acts, and `storage` writes it to disk.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import torch
from jax.extend.mlir import ir

from xla_dynamo.graphs.output_views import ViewStep
from xla_dynamo.lowerings.builders.dtypes import dtype_name, torch_dtype
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.builders.values import dtype_of, shape_of
from xla_dynamo.lowerings.passes.pack_weights import Packed
from xla_dynamo.programs.layouts import InputLayout, Restride
from xla_dynamo.runtime.mesh import Mesh, Sharding, Tiling

# Strides of some results, by their number.
Strides: TypeAlias = Mapping[int, tuple[int, ...]]
SlotT = TypeVar("SlotT")


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """A slot for the graph's `index`-th input, a tensor that most calls make anew.

    Attributes:
        index: the number of the input.
        layout: how the tensor becomes the argument.
        axes: the axes of the program's mesh that shard each dimension of the argument; () for an
            argument that is whole on each device.
    """

    index: int
    layout: InputLayout
    axes: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter(Input):
    """An input that comes again at each call: a parameter or a buffer of a module."""


@dataclasses.dataclass(frozen=True, slots=True)
class Donated(Input):
    """An input whose memory takes its new value, which is a result of the argument's shape.

    Attributes:
        as_bits: whether argument and result are int16, the bits of a tensor of bfloat16: XLA:CPU
            updates these in place.
    """

    as_bits: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SymbolValues(Input):
    """The sizes of the dynamic dimensions, i32[symbols], behind the inputs of the graph."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)  # tensors compare their elements
class Constant:
    """A tensor of the graph: a literal, or one that may change between calls."""

    tensor: torch.Tensor
    is_literal: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Seed:
    """A fresh seed of random numbers, u64[1]."""


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenValue:
    """A value that another program computes from parameters and buffers alone.

    Values of equal keys are equal, whatever sizes a program is for.
    """

    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Handles:
    """The addresses of plans, i64[calls]; those with packed weights read frozen values."""

    calls: tuple[Packed, ...]

    @property
    def reads_frozen(self) -> bool:
        """Whether a plan has packed weights."""
        return any(call.keys for call in self.calls)


@dataclasses.dataclass(frozen=True, slots=True)
class NegativeZero:
    """The number -0.0, f32[], that keeps XLA from contracting operators."""


Slot: TypeAlias = (
    Input
    | Parameter
    | Donated
    | SymbolValues
    | Constant
    | Seed
    | FrozenValue
    | Handles
    | NegativeZero
)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A slot for a result of a program's module.

    Attributes:
        restride: how the exported result gets the strides that were promised; None where it comes
            out as it is.
        is_permuted: whether the passes have chosen the order of the result's dimensions, so that
            the output has other strides than the traced ones.
        on_host: whether the result is a tensor of the CPU, wherever the others are.
        donated: the number of the input whose memory takes the result; None without one.
    """

    restride: Restride | None = None
    is_permuted: bool = False
    on_host: bool = False
    donated: int | None = None


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
    """The program that computes frozen values.

    Attributes:
        module: the StableHLO module.
        arguments: a slot for each of its arguments.
        keys: the key of each of its results.
        written_as: as in `Program`.
    """

    module: ir.Module
    arguments: tuple[Slot, ...]
    keys: tuple[str, ...]
    written_as: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Whole:
    """The arrays whose shards a partitioned module takes and returns.

    Attributes:
        module: what all devices together compute; None in a program from a file.
        arguments: the shape of each argument.
        results: the shape of each result.
        axes: for each result the axes of the mesh that shard each dimension.
    """

    module: ir.Module | None
    arguments: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[tuple[str, ...], ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A StableHLO module and how a call binds to its arguments and results.

    Attributes:
        module: the StableHLO module.
        arguments: a slot for each argument of the module.
        results: a slot for each result.
        outputs: the graph's outputs.
        mutations: the inputs that change but cannot be donated.
        effects: the operators that torch runs when the program is over.
        frozen: computes the frozen values that no earlier program has computed; None if there are
            none.
        calls_torch: whether the module calls kernels of torch.
        largest: the largest tensor that the graph makes: its bytes, and where the user made it.
        mesh: the axes, by name and size, of the devices that the program is sharded over, in their
            order; () for a program of one device.
        whole: of a module that is partitioned already, the arrays whose shards it computes with;
            None where XLA partitions the module.
        written_as: of a program from a file, the digest of the module's text when it was written,
            by which its executable is known in the disk cache; else "". Read, the text is another:
            attributes that have their defaults are left out.
    """

    module: ir.Module
    arguments: tuple[Slot, ...]
    results: tuple[Result, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...] = ()
    effects: tuple[Effect, ...] = ()
    frozen: Frozen | None = None
    calls_torch: bool = False
    largest: tuple[int, str] | None = None
    mesh: tuple[tuple[str, int], ...] = ()
    whole: Whole | None = None
    written_as: str = ""

    def of(self, kind: type[SlotT]) -> list[SlotT]:
        """The slots of a kind among the arguments."""
        return [slot for slot in self.arguments if isinstance(slot, kind)]

    @property
    def reads_frozen(self) -> bool:
        """Whether an argument is a frozen value, or has handles of such."""
        return any(handles.reads_frozen for handles in self.of(Handles)) or bool(
            self.of(FrozenValue)
        )

    def result_tilings(self) -> list[Tiling] | None:
        """How the results lie over the devices of the mesh; None where XLA says it."""
        if self.whole is None:
            return None
        names, sizes = zip(*self.mesh, strict=True)
        mesh = Mesh(range(math.prod(sizes)), sizes, names)
        return [Sharding(mesh, axes).tiling() for axes in self.whole.axes]

    def chosen_strides(self) -> Strides:
        """The strides of outputs, by number, that do not have the traced ones."""
        found = {}
        for number, output in enumerate(self.outputs):
            given = None if output.result is None else self.results[output.result]
            if given is not None and given.is_permuted and given.restride is not None:
                found[number] = given.restride.stride
        return found


def argument_types(program: Program) -> list[tuple[tuple[int, ...], str]]:
    """The shape and the dtype, by its name, of each argument of a program."""
    arguments = main_of(program.module).entry_block.arguments
    shapes = list(map(shape_of, arguments))
    if program.whole is not None:  # behind those that were partitioned come some of each device
        shapes[: len(program.whole.arguments)] = program.whole.arguments
    return [(s, dtype_name(dtype_of(a))) for s, a in zip(shapes, arguments, strict=True)]


def result_types(program: Program) -> list[tuple[tuple[int, ...], str]]:
    """The shape and the dtype, by its name, of each result of a program."""
    types = [ir.RankedTensorType(t) for t in main_of(program.module).type.results]
    shapes = [tuple(t.shape) for t in types] if program.whole is None else program.whole.results
    names = (dtype_name(torch_dtype(t.element_type)) for t in types)
    return list(zip(shapes, names, strict=True))
