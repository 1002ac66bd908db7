"""Names that Python can read for overloads whose own is a keyword, as `aten.random_.from`.

FX writes each graph down as Python code, and `torch.ops.aten.random_.from(x, 0, 2)` is none. Nor
can FX match the arguments of an operator one of which is named by a keyword.
"""

import functools
import keyword
from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.torch_private import OpOverload, all_operator_names, schema


def name_keywords() -> list[str]:
    """Let FX write `torch.ops.aten.random__from`, another name of the same overload.

    Returns:
        The overloads that are now named so, as in "aten::random_.from".
    """
    found = [n for n in all_operator_names() if keyword.iskeyword(n.rpartition(".")[2])]
    for name in found:
        namespace, _, packet = name.rpartition(".")[0].partition("::")
        operators, overload = getattr(torch.ops, namespace), name.rpartition(".")[2]
        op = getattr(getattr(operators, packet), overload)
        op.__name__ = f"{packet}_{overload}"
        setattr(operators, op.__name__, op)
    return found


@functools.cache
def without_keywords(op: OpOverload) -> Callable[..., Any]:
    """An operator, or what does the same where AOTAutograd could not trace it.

    For a call with `out=`, AOTAutograd matches arguments with the names in the schema.
    """
    arguments = schema(op).arguments
    outs = [a.name for a in arguments if a.is_out]
    if not outs or not any(keyword.iskeyword(a.name) for a in arguments):
        return op
    names = [a.name for a in arguments if not a.is_out]
    others = (getattr(op.overloadpacket, n) for n in op.overloadpacket.overloads())
    new = next(o for o in others if [a.name for a in schema(o).arguments] == names)

    def copied(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop(outs[0])
        return out.copy_(new(*args, **kwargs))

    return copied
