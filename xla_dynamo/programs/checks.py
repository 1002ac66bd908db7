"""Check that a program that was read from a file is one: kinds of fields, operators, arguments."""

import dataclasses
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any

from jax.extend.mlir import ir

from xla_dynamo.graphs.output_views import ViewStep
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.programs.program import Donated, Effect, Program
from xla_dynamo.torch_private import OpOverload, schema


def check_program(program: Program) -> None:
    """Raise ValueError or TypeError unless a program is whole, and calls views and checks alone."""
    _check(program, Program, "program")
    _check_slots(program.module, len(program.arguments), len(program.results))
    if program.frozen is not None:
        _check_slots(program.frozen.module, len(program.frozen.arguments), len(program.frozen.keys))
    numbers = [slot.donated for slot in program.results if slot.donated is not None]
    if sorted(numbers) != sorted(slot.index for slot in program.of(Donated)):
        raise ValueError("the donated inputs are not those that results are written into")


def _check_slots(module: ir.Module, arguments: int, results: int) -> None:
    main = main_of(module)
    *_, last = main.entry_block.operations
    taken, returned = len(main.entry_block.arguments), len(last.operands)
    if (taken, returned) != (arguments, results):
        raise ValueError(
            f"the module takes {taken} arguments and returns {returned} results, and the program "
            f"has slots for {arguments} and {results}"
        )


def _check(value: Any, hint: Any, name: str) -> None:
    """Raise TypeError unless a value has the type that a record's field asks for."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin in (types.UnionType, typing.Union):
        _check_one_of(value, inner, name)
    elif origin is tuple:
        if not isinstance(value, tuple):
            raise TypeError(f"{name} is {type(value).__name__}, and no tuple")
        hints = inner[:1] * len(value) if inner[-1:] == (...,) else inner
        for index, (each, kind) in enumerate(zip(value, hints, strict=True)):
            _check(each, kind, f"{name}[{index}]")
    elif origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} is {type(value).__name__}, and no mapping")
        for key, each in value.items():
            _check(key, inner[0], f"a key of {name}")
            _check(each, inner[1], f"{name}[{key!r}]")
    elif not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise TypeError(f"{name} is {type(value).__name__}, and no {hint.__name__}")
    elif dataclasses.is_dataclass(value):
        hints_by_field = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            _check(getattr(value, field.name), hints_by_field[field.name], f"{name}.{field.name}")
        _check_operator(value)


def _check_one_of(value: Any, hints: tuple[Any, ...], name: str) -> None:
    if value is None and type(None) in hints:
        return
    kinds = [hint for hint in hints if hint is not type(None)]
    if len(kinds) > 1 and type(value) not in kinds:
        raise TypeError(f"{name} is {type(value).__name__}, and none of the slots")
    _check(value, type(value) if len(kinds) > 1 else kinds[0], name)


def _check_operator(value: Any) -> None:
    """A view is made by views, and an effect is an operator that returns nothing."""
    if isinstance(value, ViewStep):
        if value.op is operator.getitem:
            return
        alias = schema(value.op).returns[0].alias_info
        if alias is None or alias.is_write:
            raise ValueError(f"{value.op} makes no view")
    elif isinstance(value, Effect) and (
        not isinstance(value.op, OpOverload) or schema(value.op).returns
    ):
        raise ValueError(f"{value.op} is no check")
