"""The recipe of a graph neural network: eager's losses, one executable for a step."""

import numpy as np
import torch

from docs.examples.recipes import gnn


def test_gnn(tmp_path, executables, split_graphs):
    arguments = ["--steps", "30", "--dropout", "0", "--out", str(tmp_path)]
    found = gnn.main(arguments)
    losses, accuracy = found["train_step"]
    eager_losses, eager_accuracy = found["eager"]
    np.testing.assert_allclose(losses, eager_losses, rtol=1e-3)
    assert losses[-1] < 0.2 * losses[0]
    assert accuracy > 0.9
    assert abs(accuracy - eager_accuracy) < 0.005
    assert executables() == 2  # the step, and the model that labels nodes
    assert not split_graphs
    assert (tmp_path / "gnn.png").stat().st_size > 10_000


def test_layers_that_normalize_break_the_graph():
    """What the recipe's comment says of a layer that adds the edges to itself in each call."""
    data = gnn.digits_graph(3, 1)
    layer = gnn.GCNConv(64, 10)
    compiled = torch.compile(layer, backend="openxla")
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(data.x, data.edge_index), layer(data.x, data.edge_index)
        )
    assert sum(torch._dynamo.utils.counters["graph_break"].values())
