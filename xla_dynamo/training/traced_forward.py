"""Run the forward of a step so that what is traced of its backward has the forward's lines."""

from collections.abc import Iterator
from typing import Any

import torch

from xla_dynamo.dynamo.eager_run import EagerRun
from xla_dynamo.graphs.node_notes import backward_meta, place_at


class TracedForward(EagerRun):
    """Runs Dynamo's graph, and lets each node of autograd's graph know which node made it.

    AOTAutograd does the same for the graphs that it traces; the graph of a step is traced without
    it, by `make_fx`.
    """

    def __init__(self, gm: torch.fx.GraphModule, seen: set[Any] | None = None) -> None:
        """Take the graph, and the nodes of autograd that are known already."""
        super().__init__(gm)
        self._seen: set[Any] = set() if seen is None else seen

    def region(self, gm: torch.fx.GraphModule) -> "TracedForward":
        """The same for a checkpointed region."""
        return TracedForward(gm, self._seen)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, and mark what its gradient consists of."""
        result = super().run_node(n)
        new = list(self._new(result))
        if new:
            meta = backward_meta(n.meta)
            for node in new:
                node.register_prehook(lambda _, meta=meta: place_at(meta))
        return result

    def _new(self, result: Any) -> Iterator[Any]:
        """The nodes of autograd's graph behind a result that no earlier node made."""
        results = result if isinstance(result, list | tuple) else (result,)
        pending = [x.grad_fn for x in results if isinstance(x, torch.Tensor)]
        while pending:
            node = pending.pop()
            if node is None or node in self._seen:
                continue
            self._seen.add(node)
            yield node
            pending += [function for function, _ in node.next_functions]
