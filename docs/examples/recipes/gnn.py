"""A graph neural network of torch_geometric that labels the nodes of a graph.

    python -m docs.examples.recipes.gnn

The nodes are scikit-learn's 1797 digits, and edges join each to the digits whose pixels are most
like its own. Five images of each class have labels; graph convolutions carry them along the edges
to all others. Gathering along edges, summing at nodes, backward and Adam are one executable.
"""

import copy
from collections.abc import Sequence

import numpy as np
import sklearn.datasets
import sklearn.neighbors
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import transforms
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import xla_dynamo
from docs.examples.progress import plot, track
from docs.examples.recipes.common import beside_eager, eager_step, options_of


def digits_graph(neighbours: int, labelled: int) -> Data:
    """Digits as nodes, joined to so many neighbours; so many of each class have labels.

    `x` is f32[1797, 64], `edge_index` i64[2, edges] and `labelled` i64[10 * labelled].
    """
    digits = sklearn.datasets.load_digits()
    near = sklearn.neighbors.kneighbors_graph(digits.data, neighbours).tocoo()
    data = Data(
        x=torch.tensor(digits.data, dtype=torch.float32) / 16,
        y=torch.tensor(digits.target),
        edge_index=torch.from_numpy(np.stack([near.col, near.row]).astype("int64")),
    )
    nodes = np.random.default_rng(0).permutation(len(digits.target))
    of_class = [nodes[digits.target[nodes] == label][:labelled] for label in range(10)]
    data.labelled = torch.from_numpy(np.concatenate(of_class))
    # GCNNorm adds each node's edge to itself. A layer would do so in each call, and look for the
    # edges that are there already: their number depends on values, so the graph would break.
    # This does it once.
    return transforms.Compose([transforms.ToUndirected(), transforms.GCNNorm()])(data)


class Net(nn.Module):
    """Two graph convolutions, f32[nodes, 64] to f32[nodes, 10]."""

    def __init__(self, width: int = 128, dropout: float = 0.5) -> None:
        super().__init__()
        self.first = GCNConv(64, width, normalize=False)  # it is in the edges' weights
        self.second = GCNConv(width, 10, normalize=False)
        self.dropout = dropout

    def forward(self, x: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x, edges, weights).relu()
        return self.second(F.dropout(hidden, self.dropout, self.training), edges, weights)


def loss_fn(
    model: nn.Module,
    x: torch.Tensor,
    edges: torch.Tensor,
    weights: torch.Tensor,
    nodes: torch.Tensor,
    labels: torch.Tensor,
) -> torch.Tensor:
    """Cross entropy of the nodes that have labels."""
    return F.cross_entropy(model(x, edges, weights)[nodes], labels)


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple[list[float], float]]:
    """Train twice; return losses and the accuracy at nodes without labels, by way of training."""
    parser = options_of(__doc__, "gnn", steps=100)
    parser.add_argument("--neighbours", type=int, default=8)
    parser.add_argument("--labelled", type=int, default=5, help="nodes of each class")
    parser.add_argument("--dropout", type=float, default=0.5)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    data = digits_graph(options.neighbours, options.labelled)
    inputs = (data.x, data.edge_index, data.edge_weight)
    batch = (*inputs, data.labelled, data.y[data.labelled])
    hidden_labels = torch.ones(data.num_nodes, dtype=torch.bool)
    hidden_labels[data.labelled] = False

    net, steps, found = Net(dropout=options.dropout), {}, {}
    for name in ("train_step", "eager"):
        model = copy.deepcopy(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        make_step = xla_dynamo.train_step if name == "train_step" else eager_step
        steps[name] = make_step(model, loss_fn, optimizer)
        losses = [steps[name](*batch).item() for _ in track(range(options.steps), name)]
        model.eval()
        # fullgraph: a break of the graph would be an error, and not merely slow.
        compiled = torch.compile(model, backend="openxla", fullgraph=True)
        with torch.no_grad():
            guesses = (compiled if name == "train_step" else model)(*inputs).argmax(1)
        accuracy = (guesses == data.y)[hidden_labels].float().mean().item()
        model.train()
        found[name] = losses, accuracy

    seconds = beside_eager(
        "a step", {name: lambda step=step: step(*batch).item() for name, step in steps.items()}
    )
    curves = {name: losses for name, (losses, _) in found.items()}
    plot(options.out / "gnn.png", losses=curves, seconds=seconds)
    accuracies = ", ".join(f"{name} {accuracy:.1%}" for name, (_, accuracy) in found.items())
    print(f"{data.num_nodes} nodes, {data.num_edges} edges, {len(data.labelled)} labels")
    print(f"accuracy at the other nodes: {accuracies}; picture: {options.out}/gnn.png")
    return found


if __name__ == "__main__":
    main()
