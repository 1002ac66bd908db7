"""The guards that a trace puts on dynamic sizes, as a text that another process can put on its own.

AOTAutograd decides some questions about dynamic sizes by their present values, and Dynamo then
guards the answers. Who takes a graph from a file instead of tracing it has to ask the same
questions.
"""

from typing import Any

import torch


def _dynamic_sizes(gm: torch.fx.GraphModule) -> list[torch.SymInt]:
    """The symbols among the sizes and numbers of the inputs of Dynamo's graph."""
    found: dict[Any, torch.SymInt] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("example_value")
        numbers = (*fake.shape, *fake.stride()) if isinstance(fake, torch.Tensor) else (fake,)
        for number in numbers:
            if isinstance(number, torch.SymInt) and number.node.expr.is_symbol:
                found.setdefault(number.node.expr, number)
    return list(found.values())


def has_dynamic_sizes(gm: torch.fx.GraphModule) -> bool:
    """Whether sizes or numbers of the inputs of Dynamo's graph are dynamic."""
    return bool(_dynamic_sizes(gm))


def guards_on_sizes(gm: torch.fx.GraphModule) -> str:
    """All guards so far on the dynamic sizes of Dynamo's graph; "" if there are none."""
    sizes = _dynamic_sizes(gm)
    environment = sizes[0].node.shape_env
    guards = environment.get_pruned_guards(sizes)
    return environment.produce_guards_expression(sizes, guards=guards) or ""


def take_guards(gm: torch.fx.GraphModule, guards: str) -> bool:
    """Guard the dynamic sizes of Dynamo's graph by these guards of another process's trace of it.

    Returns:
        Whether the present sizes keep them; if not, no guard is added.
    """
    if not guards:
        return True
    sizes = _dynamic_sizes(gm)
    environment = sizes[0].node.shape_env
    hints = [size.node.hint for size in sizes]
    if None in hints or not environment.evaluate_guards_expression(guards, hints):
        return False
    return bool(environment.evaluate_guards_expression(guards, sizes))
