"""Inline the regions that the user marked to be traced once (invoke_subgraph).

XLA would inline them too. But inlined here, a region with an operator without a rule is split at
that operator, and does not run in eager torch as a whole.
"""

from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.nodes import attribute_of, bodies

Node: TypeAlias = torch.fx.Node
invoke_subgraph = torch.ops.higher_order.invoke_subgraph


def inline_subgraphs(gm: torch.fx.GraphModule) -> None:
    """Replace every call of a marked region by its nodes, in a graph and in the bodies inside."""
    for module in list(gm.modules()):
        if isinstance(module, torch.fx.GraphModule):
            calls = module.graph.find_nodes(op="call_function", target=invoke_subgraph)
            while calls:  # a region may call others
                for call in calls:
                    _inline(module, call)
                calls = module.graph.find_nodes(op="call_function", target=invoke_subgraph)


def _inline(gm: torch.fx.GraphModule, call: Node) -> None:
    (region,) = bodies(call)
    operands = call.args[2:]  # behind the region and its name
    env: dict[Node, Any] = dict(
        zip(region.graph.find_nodes(op="placeholder"), operands, strict=True)
    )
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            env[node] = gm.graph.node_copy(node, env.__getitem__)
            if node.op == "get_attr":
                env[node].target = _attribute(gm, attribute_of(node), str(node.target))
    results = region.graph.output_node().args[0]
    for item in list(call.users):
        result = results[item.args[1]]  # type: ignore[index]
        made = env[result] if isinstance(result, torch.fx.Node) else result
        for user in list(item.users):
            user.args, user.kwargs = torch.fx.map_arg(
                (user.args, user.kwargs), lambda n, old=item, new=made: new if n is old else n
            )
        gm.graph.erase_node(item)
    source = call.args[0]
    gm.graph.erase_node(call)
    if not source.users:  # type: ignore[union-attr]
        gm.graph.erase_node(source)  # type: ignore[arg-type]


def _attribute(gm: torch.fx.GraphModule, attribute: Any, name: str) -> str:
    """The name under which a graph has a tensor or a graph of a region's, adding it if need be."""
    name = name.replace(".", "_")
    while getattr(gm, name, attribute) is not attribute:
        name += "_"
    if not hasattr(gm, name):
        setattr(gm, name, attribute)
    return name
