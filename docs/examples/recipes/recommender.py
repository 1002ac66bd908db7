"""A recommender of two towers with embedding tables, on clicks whose probabilities are known.

    python -m docs.examples.recipes.recommender

Each item has a genre, and each user a taste for genres; a user clicks by taste. The model sees
neither. It sees the numbers of up to 20 items that a user has clicked before, which an
`nn.EmbeddingBag` averages, and the number of the item to score. Its AUC rises towards that of the
true probabilities, which no model can beat. Lookups, gradients of the tables and Adam are one
executable. The gradients are dense: `train_step` refuses tables of `sparse=True`.
"""

import copy
from collections.abc import Sequence

import numpy as np
import sklearn.metrics
import torch
import torch.nn.functional as F
from torch import nn

import xla_dynamo
from docs.examples.progress import plot, track
from docs.examples.recipes.common import beside_eager, eager_step, options_of

GENRES, HISTORY = 12, 20


class Clicks:
    """Batches of users' histories, items and clicks, drawn from a model that is known."""

    def __init__(self, items: int) -> None:
        """Give the items 1, 2, ... the genres 1, 2, ..., 11, 0, 1, ...; item 0 stands for none."""
        self.random = np.random.default_rng(0)
        self.of_a_genre = items // GENRES

    def draw(self, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray]:
        """Histories i64[batch, 20], items i64[batch], clicks f32[batch], their probabilities."""
        random = self.random
        taste = random.dirichlet(np.full(GENRES, 0.1), size=batch)
        liked = self._genres(taste, HISTORY + 1)
        length = random.integers(5, HISTORY + 1, size=(batch, 1))
        history = np.where(np.arange(HISTORY) < length, self._items(liked[:, 1:]), 0)
        # Half of the items are of genres that the user likes: clicks would be rare otherwise.
        is_any = random.random(batch) < 0.5
        genre = np.where(is_any, random.integers(GENRES, size=batch), liked[:, 0])
        chance = 0.05 + 0.9 * np.sqrt(taste[np.arange(batch), genre])
        clicks = (random.random(batch) < chance).astype("float32")
        arrays = history, self._items(genre), clicks
        return *map(torch.from_numpy, arrays), chance

    def _genres(self, taste: np.ndarray, count: int) -> np.ndarray:
        """So many genres, drawn by the taste of each user."""
        drawn = self.random.random((len(taste), count, 1))
        return (taste.cumsum(1)[:, None] < drawn).sum(2).clip(max=GENRES - 1)

    def _items(self, genres: np.ndarray) -> np.ndarray:
        """An item of each genre; few items are popular, as in shops."""
        popular = self.random.random(genres.shape) ** 3
        return 1 + genres + GENRES * (popular * self.of_a_genre).astype("int64")


class TwoTowers(nn.Module):
    """Histories i64[batch, 20] and items i64[batch] to logits of clicks f32[batch]."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.histories = nn.EmbeddingBag(items + 1, width, mode="mean", padding_idx=0)
        self.items = nn.Embedding(items + 1, width)
        self.user_tower = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32))
        self.item_tower = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32))
        self.bias = nn.Parameter(torch.zeros(()))
        for table in (self.histories, self.items):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, history: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        user = self.user_tower(self.histories(history))
        return (user * self.item_tower(self.items(item))).sum(1) + self.bias


def loss_fn(
    model: nn.Module, history: torch.Tensor, item: torch.Tensor, clicks: torch.Tensor
) -> torch.Tensor:
    """Binary cross entropy of a batch."""
    return F.binary_cross_entropy_with_logits(model(history, item), clicks)


def main(arguments: Sequence[str] | None = None) -> tuple[dict[str, list[float]], float, float]:
    """Train twice; return losses by way of training, the AUC, and the best possible AUC."""
    parser = options_of(__doc__, "recommender", steps=400)
    parser.add_argument("--items", type=int, default=2_000, help="rows of each table")
    parser.add_argument("--width", type=int, default=32, help="of a row")
    parser.add_argument("--batch", type=int, default=1024)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    net = TwoTowers(options.items, options.width)
    losses, steps, models = {}, {}, {}
    for name in ("train_step", "eager"):
        models[name] = model = copy.deepcopy(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        make_step = xla_dynamo.train_step if name == "train_step" else eager_step
        steps[name] = step = make_step(model, loss_fn, optimizer)
        clicks = Clicks(options.items)
        losses[name] = [
            step(*clicks.draw(options.batch)[:3]).item() for _ in track(range(options.steps), name)
        ]

    *held_out, labels, chance = clicks.draw(8192)
    scores = torch.compile(models["train_step"], backend="openxla", fullgraph=True)
    with torch.no_grad():
        auc = sklearn.metrics.roc_auc_score(labels, scores(*held_out))
    best = sklearn.metrics.roc_auc_score(labels, chance)
    batch = clicks.draw(options.batch)[:3]
    seconds = beside_eager(
        "a step", {name: lambda step=step: step(*batch).item() for name, step in steps.items()}
    )
    plot(options.out / "recommender.png", losses=losses, seconds=seconds)
    print(f"AUC on new users: {auc:.3f}; of the true probabilities: {best:.3f}")
    print(f"picture: {options.out}/recommender.png")
    return losses, auc, best


if __name__ == "__main__":
    main()
