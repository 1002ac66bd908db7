"""`module:function` on a command line to a callable and its arguments."""

import argparse
import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xla_dynamo.command_line.failures import CommandFailure

_SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d, ]*)\]")


class Target(NamedTuple):
    """What a command compiles: `fn(*args, **kwargs)`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say a target."""
    parser.add_argument(
        "target",
        metavar="MODULE:NAME",
        help="a function of no arguments that returns (fn, args) or (fn, args, kwargs); with "
        "--input what is compiled itself: a function, a module, or a module's class",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="DTYPE[SIZES]",
        help="a tensor to call it with, such as 'float32[8,64]': random numbers, or zeros of a "
        "dtype that is not floating-point; once for each argument",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the backend, as in torch.compile(options=...)",
    )


def find_target(arguments: argparse.Namespace) -> Target:
    """The target of a command line.

    Raises:
        CommandFailure: there is no such module or name, or it is not of a form that is known.
    """
    found = _look_up(arguments.target)
    if arguments.input:
        inputs = tuple(map(_tensor, arguments.input))
        model: Any = found() if inspect.isclass(found) else found
        return Target(model, inputs, {})
    made: Any = found()
    if not (isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0])):
        raise CommandFailure(
            f"{arguments.target} returned a {type(made).__name__}, not (fn, args) or (fn, args, "
            "kwargs); to compile it itself say what to call it with: --input 'float32[8,64]'",
            status=2,
        )
    fn, args, *kwargs = made
    return Target(fn, tuple(args), dict(kwargs[0]) if kwargs else {})


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the backend that a command line gives."""
    found = {}
    for given in arguments.option:
        name, equals, text = given.partition("=")
        if not equals:
            raise CommandFailure(f"--option {given}: write NAME=VALUE", status=2)
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[name] = text  # a word, as in fallback=error
    return found


def _look_up(target: str) -> Callable[..., Any]:
    place, colon, name = target.partition(":")
    if not (place and colon and name):
        raise CommandFailure(f"{target!r} is no target: write module:name", status=2)
    if os.getcwd() not in sys.path:  # a script's path has its own folder alone
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # from within it
        raise CommandFailure(
            f"there is no module {place!r} here or on PYTHONPATH ({error})", status=2
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise CommandFailure(f"{place} has no {name!r}", status=2)
        found = getattr(found, part)
    if not callable(found):
        raise CommandFailure(f"{target} is a {type(found).__name__}: it cannot be called", status=2)
    return found


def _tensor(spec: str) -> Any:
    import torch

    match = _SPEC.fullmatch(spec.strip())
    dtype = getattr(torch, match["dtype"], None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise CommandFailure(f"--input {spec}: write a tensor as float32[8,64]", status=2)
    sizes: Sequence[int] = [int(n) for n in match["sizes"].split(",") if n.strip()]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(sizes).to(dtype)
    return torch.zeros(sizes, dtype=dtype)
