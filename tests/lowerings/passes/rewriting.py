"""One pass on a module that is given as text, and the text of the module that comes out."""

import contextlib
import re

from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.lowerings.target import Target

CPU, GPU = Target("cpu"), Target("cuda")


@contextlib.contextmanager
def parsed(text):
    """A module, in a context of its own."""
    with make_ir_context(), ir.Location.unknown():
        yield ir.Module.parse(text)


def normalized(text):
    """A module as MLIR prints it."""
    with parsed(text) as module:
        return str(module)


def rewritten(rewrite, text, target=CPU):
    """A module after a pass, as MLIR prints it."""
    with parsed(text) as module:
        rewrite(module, target)
        assert module.operation.verify()
        return str(module)


def operations(text):
    """The operations of a printed module in order, those with one tensor as their result.

    Each comes with its result's type, as "reduce 4x100xf32" and "call @once 8x8xf32".
    """
    name, result = r"\"?(?:stablehlo\.|chlo\.)?(call @\w+|\w+)", r"tensor<([^<>]*)>"
    found = re.findall(rf"(?:= {name}.*|^    \}}\).*){result}$", text, re.M)
    return [f"{name} {type_}".strip() for name, type_ in found]
