"""Export a function or module as StableHLO and weights, to a folder that runs without its code.

By way of torch.export, for inference: a module is exported in eval mode.

  xla-dynamo export mymodels:example --out folder
  xla-dynamo export mymodels:Model --input 'float32[2,64]' --dynamic-shape x:0=batch --out folder

docs/export.md says what the folder holds, and how it is loaded with torch and without.
"""

import argparse
import inspect
import pathlib
import re
import warnings
from collections.abc import Sequence
from typing import Any

from xla_dynamo.command_line import targets
from xla_dynamo.command_line.caches import size_of
from xla_dynamo.command_line.calling import calling
from xla_dynamo.command_line.failures import CommandFailure
from xla_dynamo.command_line.targets import Call

SUMMARY = "write module:function as StableHLO and weights to a folder"
_SHAPE = re.compile(r"(?P<input>\w+):(?P<dim>\d+)=(?P<name>[A-Za-z_]\w*)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    targets.add_arguments(parser)
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, metavar="FOLDER", help="write it there"
    )
    parser.add_argument(
        "--dynamic-shape",
        action="append",
        default=[],
        metavar="INPUT:DIM=NAME",
        help="leave a dimension of the input of that name dynamic, as in x:0=batch; one name for "
        "several says that they are equal",
    )
    parser.add_argument(
        "--platform", choices=("cpu", "cuda", "tpu"), help="that the forms are chosen for"
    )
    parser.add_argument(
        "--custom-ops",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="operators of that namespace without a rule become custom calls",
    )
    parser.add_argument(
        "--stablehlo-version", metavar="VERSION", help="of its readers, as in 1.4.0: the newest"
    )


def run(arguments: argparse.Namespace) -> int:
    """Export the target; returns the exit status.

    Raises:
        CommandFailure: there is no such target, it cannot be exported, or the folder cannot be
            written.
    """
    target = targets.find_target(arguments.target, arguments)
    if len(target.calls) > 1:
        raise CommandFailure(
            "--input: an export is made of one call; name dynamic sizes by --dynamic-shape",
            status=2,
        )
    (call,) = target.calls

    import torch

    from xla_dynamo.stablehlo import StableHLOExportOptions, exported_program_to_stablehlo

    options = StableHLOExportOptions(
        platform=arguments.platform, custom_ops_allowed_in_graph=frozenset(arguments.custom_ops)
    )
    with calling(target, given_inputs=bool(arguments.input)), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, about its own code
        module = _module(target.fn)
        shapes = _dynamic_shapes(module, call, arguments.dynamic_shape)
        with torch.set_grad_enabled(not arguments.no_grad):
            program = torch.export.export(module, call.args, call.kwargs, dynamic_shapes=shapes)
        exported = exported_program_to_stablehlo(program, options)
        exported.save(arguments.out, arguments.stablehlo_version)
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(f"{target.name}: {exported.signature}")
    print(f"{arguments.out}: {size_of(size)}")
    return 0


def _module(fn: Any) -> Any:
    """A function as a module, as torch.export wants it; a module in eval mode."""
    import torch

    from xla_dynamo.torch_private import uncompiled

    fn = uncompiled(fn)
    if isinstance(fn, torch.nn.Module):
        return fn.eval()

    class Function(torch.nn.Module):
        forward = staticmethod(fn)

    return Function()


def _dynamic_shapes(module: Any, call: Call, given: Sequence[str]) -> dict[str, Any] | None:
    """What torch.export takes as `dynamic_shapes`: dimensions by the names of arguments."""
    if not given:
        return None
    import torch

    bound = inspect.signature(module.forward).bind(*call.args, **call.kwargs).arguments
    names: dict[str, Any] = {}
    shapes: dict[str, Any] = dict.fromkeys(bound)
    for text in given:
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise CommandFailure(f"--dynamic-shape {text}: write INPUT:DIM=NAME", status=2)
        value = bound.get(match["input"])
        if not isinstance(value, torch.Tensor):
            known = ", ".join(n for n, v in bound.items() if isinstance(v, torch.Tensor))
            raise CommandFailure(
                f"--dynamic-shape {text}: no input {match['input']!r} is a tensor; there are: "
                f"{known or 'none'}",
                status=2,
            )
        if int(match["dim"]) >= value.dim():
            raise CommandFailure(
                f"--dynamic-shape {text}: {match['input']} has {value.dim()} dimensions", status=2
            )
        dim = names.setdefault(match["name"], torch.export.Dim(match["name"]))
        shapes[match["input"]] = {**(shapes[match["input"]] or {}), int(match["dim"]): dim}
    return shapes
