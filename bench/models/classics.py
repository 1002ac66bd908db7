"""Small networks that everybody has written once: a GPT, recommendation, graphs, control.

Those of images are in `classic_images`, those that step through time in `recurrent`.
"""

import functools
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from bench.models.inputs import floats, integers, sized, together
from bench.models.registry import register

_register = functools.partial(register, family="classic")


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class NanoGpt(nn.Module):
    """GPT in the fewest lines: norms first, causal attention, tied embeddings."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.dropout = nn.Dropout(0.1)
        for table in self.words, self.places:
            nn.init.normal_(table.weight, std=0.02)

    def _attend(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        split = self.qkv[layer](x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split.unbind(), is_causal=True)
        return self.out[layer](mixed.transpose(1, 2).flatten(2))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.dropout(self.words(input_ids) + self.places(places))
        for layer, mlp in enumerate(self.mlps):
            x = x + self.dropout(self._attend(self.norms[2 * layer](x), layer))
            x = x + self.dropout(mlp(self.norms[2 * layer + 1](x)))
        return F.linear(self.norms[-1](x), self.words.weight)


_register(  # the one for the characters of Shakespeare
    "nanogpt", NanoGpt,
    {"vocabulary": 99, "context": 256, "width": 384, "heads": 6, "depth": 6},
    {"vocabulary": 99, "context": 16, "width": 16, "heads": 4, "depth": 2},
    integers("input_ids", (256,), (12,)),
)  # fmt: skip


class Dlrm(nn.Module):
    """Recommends from numbers and sets of categories: the dot products of all; arXiv:1906.00091."""

    def __init__(self, rows: int, tables: int, width: int, bottom: tuple, top: tuple) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = perceptron(13, *bottom, width)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs)
        self.top = perceptron(width + pairs.shape[1], *top, 1)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        bags = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([dense, *bags], 1)
        products = torch.bmm(features, features.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).sigmoid()


_register(
    "dlrm", Dlrm,
    {"rows": 10_000, "tables": 26, "width": 64, "bottom": (512, 256), "top": (512, 256)},
    {"rows": 99, "tables": 3, "width": 8, "bottom": (16,), "top": (16,)},
    together(floats("numbers", (13,), (13,)), integers("categories", (26, 4), (3, 4))), batch=128,
)  # fmt: skip


class GraphConvolution(nn.Module):
    """GCN: sums over edges, weighted by the degrees of both ends; arXiv:1609.02907."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        degree = nodes.new_ones(len(nodes)).index_add(0, target, nodes.new_ones(len(target)))
        scale = degree.rsqrt()
        weight = (scale[source] * scale[target])[:, None]
        for index, layer in enumerate(self.layers):
            sent = layer(nodes.relu() if index else nodes)
            nodes = (sent / degree[:, None]).index_add(0, target, sent[source] * weight)
        return nodes


class GraphSage(nn.Module):
    """GraphSAGE: a node and its neighbours' greatest message, or mean; arXiv:1706.02216."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.heard = nn.ModuleList(map(nn.Linear, widths, widths[1:]))

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for index, (own, heard) in enumerate(zip(self.own, self.heard, strict=True)):
            to = target[:, None].expand(-1, nodes.shape[1])
            how = "mean" if index else "amax"
            news = torch.zeros_like(nodes).scatter_reduce(
                0, to, nodes[source], how, include_self=False
            )
            nodes = F.normalize(own(nodes) + heard(news), dim=-1)
            nodes = nodes if index == len(self.own) - 1 else nodes.relu()
        return nodes


def _graphs(batch: int, sizes: tuple[int, int, int]) -> dict[str, torch.Tensor]:
    """As many graphs, not connected with each other, as one list of nodes and one of edges."""
    nodes, features, edges = sizes
    first = torch.arange(batch).repeat_interleave(edges) * nodes
    ends = torch.randint(0, nodes, (2, batch * edges)) + first
    return {"nodes": torch.randn(batch * nodes, features), "edges": ends}


for _name, _network in ("gcn", GraphConvolution), ("graphsage", GraphSage):
    _register(  # graphs as large as Cora
        _name, lambda widths, network=_network: network(*widths), {"widths": (1433, 64, 64, 7)},
        {"widths": (12, 8, 5)}, sized((2708, 1433, 10556), (20, 12, 60), _graphs), batch=1,
    )  # fmt: skip


class Actor(nn.Module):
    """Soft actor-critic's policy: a squashed Gaussian action, and its logarithmic density."""

    def __init__(self, observed: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.layers = perceptron(observed, hidden, hidden, 2 * actions)

    def forward(self, state: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, spread = self.layers(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, spread.clamp(-20, 2).exp())
        raw = mean + noise * normal.scale
        squash = 2 * (0.6931471805599453 - raw - F.softplus(-2 * raw))  # log(1 - tanh(raw)**2)
        return raw.tanh(), (normal.log_prob(raw) - squash).sum(-1)


class Critics(nn.Module):
    """Soft actor-critic's two values of an action, and the lesser of both."""

    def __init__(self, observed: int, actions: int, hidden: int) -> None:
        super().__init__()
        widths = observed + actions, hidden, hidden, 1
        self.first, self.second = perceptron(*widths), perceptron(*widths)

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = torch.cat([state, action], -1)
        first, second = self.first(both), self.second(both)
        return first, second, torch.minimum(first, second)


_ROBOT = {"observed": 17, "actions": 6, "hidden": 256}
for _name, _agent, _second in ("sac_actor", Actor, "noise"), ("sac_critics", Critics, "action"):
    _register(
        _name, _agent, _ROBOT, {**_ROBOT, "hidden": 16},
        together(floats("state", (17,), (17,)), floats(_second, (6,), (6,))), batch=256,
    )  # fmt: skip
