"""What lowering makes of a graph: a StableHLO module, and how a call binds to it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir

from xla_dynamo.programs.layouts import Finish, InputLayout
from xla_dynamo.torch_private import OpOverload

# Strides of some results, by their number.
Strides: TypeAlias = Mapping[int, tuple[int, ...]]


@dataclasses.dataclass(slots=True)
class Input:
    """A program argument that is the graph's `index`-th input."""

    index: int
    layout: InputLayout


@dataclasses.dataclass(slots=True)
class Constant:
    """A tensor of the graph: a literal, or one that may change between calls."""

    tensor: torch.Tensor
    is_literal: bool


@dataclasses.dataclass(slots=True)
class Output:
    """A graph output: a program result or a view of one, an input or a view of one, or a number.

    `result` and `input` are indices, or None. `view` is the (size, stride, offset) of a view of a
    result, `replay` makes a view of an input.
    """

    result: int | None = None
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    input: int | None = None
    replay: Callable[[torch.Tensor], torch.Tensor] | None = None
    number: Any = None


@dataclasses.dataclass(slots=True)
class Mutation:
    """The graph's `index`-th input takes the value of an output when the call is over."""

    index: int
    output: Output


@dataclasses.dataclass(slots=True)
class Effect:
    """An operator that torch runs on results when the program is over: a check, a print."""

    op: OpOverload
    args: list[Output]
    kwargs: dict[str, Output]


@dataclasses.dataclass(slots=True)
class Frozen:
    """What a program takes that another program has computed from parameters and buffers alone.

    Attributes:
        keys: what each value is: equal keys, equal values, whichever sizes a program is for.
        module: computes those of `computed`; None if there are none.
        inputs: its first arguments.
        constants: the others.
        computed: the keys of its results.
    """

    keys: list[str]
    module: ir.Module | None
    inputs: list[Input]
    constants: list[torch.Tensor]
    computed: list[str]


@dataclasses.dataclass(slots=True)
class Program:
    """A StableHLO module and how a call binds to its arguments and results.

    Arguments come in the order donated inputs, other inputs, static inputs (parameters and
    buffers), constants, frozen values, seed (if it `draws` random numbers). The new values of
    donated inputs are results behind all others, of their arguments' shapes; mutated inputs that
    cannot be donated are in `mutations`. `calls_torch` says that it calls kernels of torch.
    `chosen_strides` are those of outputs, by number, that come in others than were traced.
    """

    module: ir.Module
    donations: list[Input]
    inputs: list[Input]
    static_inputs: list[Input]
    constants: list[Constant]
    draws: bool
    outputs: list[Output]
    mutations: list[Mutation]
    effects: list[Effect]
    results: int
    finishers: dict[int, Finish]
    frozen: Frozen | None = None
    calls_torch: bool = False
    chosen_strides: Strides = dataclasses.field(default_factory=dict)
