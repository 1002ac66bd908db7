"""Prepare an ATen graph for lowering, whoever made it and whatever becomes of the program."""

import torch

from xla_dynamo.graphs.collective_groups import resolve_groups
from xla_dynamo.graphs.manual_regions import check_manual_regions
from xla_dynamo.graphs.sizes import write_out_products
from xla_dynamo.graphs.subgraphs import inline_subgraphs


def prepare(gm: torch.fx.GraphModule) -> None:
    """Write a graph, in place, in the form that lowering takes.

    Raises:
        ShardingError: a manual region has what has no meaning there.
    """
    inline_subgraphs(gm)
    write_out_products(gm)
    resolve_groups(gm)
    check_manual_regions(gm)
