"""A transformer of two layers, trained for twenty steps alone or sharded by a recipe."""

import dataclasses
import functools
import math

import pytest
import torch
from torch.nn import functional as F

import xla_dynamo
from tests.spmd.sharding import ONE_AXIS, QUICK, TALL, WIDE
from xla_dynamo import spmd
from xla_dynamo.spmd.recipes import shard_batch

MESHES = {"8": ONE_AXIS, "2x4": WIDE, "4x2": TALL}


def on_meshes(test):
    """The test on one of the meshes, by its name."""
    return pytest.mark.every(3)(pytest.mark.parametrize("name", MESHES)(test))


VOCABULARY, WIDTH, HEADS, HIDDEN = 64, 32, 8, 48
BATCH, LENGTH = 16, 24


class Attention(torch.nn.Module):
    """Attention of several heads; the function that computes it can be another."""

    def __init__(self, attend=F.scaled_dot_product_attention):
        super().__init__()
        self.attend = attend
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, torch.nn.Linear(WIDTH, WIDTH, bias=name == "o_proj"))

    def forward(self, x):
        q, k, v = (
            project(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(self.attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(torch.nn.Module):
    """Two layers with a bias."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Layer(torch.nn.Module):
    """Attention and a feed-forward net, each after a norm."""

    def __init__(self, attention, feed_forward):
        super().__init__()
        self.attention_norm, self.attention = torch.nn.LayerNorm(WIDTH), attention
        self.norm, self.feed_forward = torch.nn.LayerNorm(WIDTH), feed_forward

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.norm(x))


class Transformer(torch.nn.Module):
    """From tokens to logits."""

    def __init__(self, attention=Attention, feed_forward=FeedForward):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(attention(), feed_forward()) for _ in range(2))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_fn(model, tokens, labels):
    """The mean cross entropy."""
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def loss_by_position(model, tokens, labels):
    """The same, without a reshape that would merge batch and sequence."""
    return F.cross_entropy(model(tokens).transpose(1, 2), labels)


@dataclasses.dataclass
class Run:
    """What twenty steps gave, and what they were compiled to."""

    losses: torch.Tensor
    executable: object
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer


def train(recipe=None, make=Transformer, steps=20, loss_fn=loss_fn):
    """Train a model that a recipe shards; each step is given a batch of its own."""
    torch.manual_seed(0)
    model = make()
    batch_axes = None
    if recipe is not None:
        model, mesh, batch_axes = recipe(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = xla_dynamo.train_step(model, loss_fn, optimizer, options=QUICK)
    step = xla_dynamo.explain(step)
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        batch = torch.randint(VOCABULARY, (2, BATCH, LENGTH)).unbind()
        batch = [t.clone() for t in batch]
        if batch_axes:
            shard_batch(batch, mesh, batch_axes)
        losses.append(step(*batch).result.item())
    (executable,) = step.report.executables
    return Run(torch.tensor(losses), executable, model, optimizer)


@functools.cache
def alone(make=Transformer):
    """The losses on one device."""
    return train(make=make).losses


def check_losses(run, make=Transformer):
    """That the losses are those of one device."""
    torch.testing.assert_close(run.losses, alone(make), rtol=1e-4, atol=0)
    assert run.losses[-1] < run.losses[0]


def shards_of_marks(tensor):
    """Into how many shards the mark of a tensor splits it."""
    sharding = spmd.sharding_of(tensor)
    return math.prod(sharding.counts()) if sharding is not None else 1


def check_bytes(run):
    """That each device is given the share of the parameters and their state that the marks say."""
    shares = 0
    for p in run.model.parameters():
        state = run.optimizer.state[p]
        for tensor in (p, state["exp_avg"], state["exp_avg_sq"]):
            assert shards_of_marks(tensor) == shards_of_marks(p)
            shares += tensor.nbytes // shards_of_marks(tensor)
    beside = 2 * BATCH * LENGTH * 8 + 16 * len(run.optimizer.state) + 64  # batch, counts, rates
    assert shares < run.executable.cost.argument_bytes <= shares + beside
    return shares / sum(3 * p.nbytes for p in run.model.parameters())
