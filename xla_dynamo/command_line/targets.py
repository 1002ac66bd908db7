"""`module:function` on a command line to a callable and the arguments of its calls."""

import argparse
import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xla_dynamo.command_line.failures import CommandFailure

_SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,| ]*)\]")


class Call(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Target(NamedTuple):
    """What a command compiles, `fn`, and the calls that it is compiled for."""

    name: str
    fn: Callable[..., Any]
    calls: tuple[Call, ...]


def add_arguments(parser: argparse.ArgumentParser, *, nargs: str | None = None) -> None:
    """The arguments that say a target, or several."""
    parser.add_argument(
        "target",
        nargs=nargs,
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
        "dtype that is not floating-point; once for each argument. 'int64[1,16|32]' stands for two "
        "calls, one with each size",
    )
    parser.add_argument(
        "--no-grad",
        action="store_true",
        help="for inference: without gradients, and the module of a class in eval mode",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The arguments that say the backend's options."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the backend, as in torch.compile(options=...)",
    )


def find_target(name: str, arguments: argparse.Namespace) -> Target:
    """The target of a name, with the inputs of a command line.

    Raises:
        CommandFailure: there is no such module or name, or it is not of a form that is known.
    """
    found = _look_up(name)
    if arguments.input:
        calls = calls_of(arguments.input)
        model: Any = found
        if inspect.isclass(found):
            model = _called(name, found)
            if arguments.no_grad and hasattr(model, "eval"):
                model.eval()
        return Target(name, model, calls)
    made: Any = _called(name, found)
    if not (isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0])):
        raise CommandFailure(
            f"{name} returned a {type(made).__name__}, not (fn, args) or (fn, args, kwargs); to "
            "compile it itself say what to call it with: --input 'float32[8,64]'",
            status=2,
        )
    fn, args, kwargs = made if len(made) == 3 else (*made, {})
    if not (isinstance(args, tuple | list) and isinstance(kwargs, Mapping)):
        given = type(kwargs if isinstance(args, tuple | list) else args).__name__
        raise CommandFailure(
            f"{name} returned a {given} where (fn, args) or (fn, args, kwargs) has args in a "
            "tuple, as (x,), and kwargs in a dict",
            status=2,
        )
    return Target(name, fn, (Call(tuple(args), dict(kwargs)),))


def calls_of(specs: Sequence[str]) -> tuple[Call, ...]:
    """The calls that the values of --input stand for.

    Sizes with several values, as in "int64[1,16|32]", are changed together: they have equally many.
    """
    choices = [_sizes(spec) for spec in specs]
    counts = {len(size) for _, sizes in choices for size in sizes if len(size) > 1}
    if len(counts) > 1:
        raise CommandFailure(
            f"--input {' '.join(specs)}: sizes with several values need equally many of them, as "
            "each call takes the next of each",
            status=2,
        )
    return tuple(
        Call(tuple(_tensor(dtype, [s[i % len(s)] for s in sizes]) for dtype, sizes in choices), {})
        for i in range(max(counts, default=1))
    )


def _called(name: str, fn: Callable[[], Any]) -> Any:
    """What a function of no arguments returns."""
    try:
        inspect.signature(fn).bind()
    except TypeError as error:
        raise CommandFailure(
            f"{name} cannot be called without arguments ({error}): name a function that returns "
            "(fn, args), or say what to call it with: --input 'float32[8,64]'",
            status=2,
        ) from error
    except ValueError:  # a function of C's has no signature
        pass
    return fn()


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
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise CommandFailure(f"{target!r} is no target: write module:name", status=2)
    if os.getcwd() not in sys.path:  # a script's path has its own folder alone
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # from within it
        raise CommandFailure(
            f"there is no module {module!r} here or on PYTHONPATH ({error})", status=2
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise CommandFailure(f"{module} has no {name!r}", status=2)
        found = getattr(found, part)
    if not callable(found):
        raise CommandFailure(f"{target} is a {type(found).__name__}: it cannot be called", status=2)
    return found


def _sizes(spec: str) -> tuple[Any, list[list[int]]]:
    """The dtype of an input, and the values of each of its sizes."""
    import torch

    match = _SPEC.fullmatch(spec.strip())
    dtype = getattr(torch, match["dtype"], None) if match else None
    try:
        if match is None or not isinstance(dtype, torch.dtype):
            raise ValueError(spec)
        given = match["sizes"].strip()
        return dtype, [[int(n) for n in size.split("|")] for size in given.split(",") if given]
    except ValueError:
        raise CommandFailure(f"--input {spec}: write a tensor as float32[8,64]", status=2) from None


def _tensor(dtype: Any, sizes: Sequence[int]) -> Any:
    import torch

    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(sizes).to(dtype)
    return torch.zeros(sizes, dtype=dtype)
