"""Programs that are sharded compute products on unmerged dimensions: the same numbers."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.compiling import EXACT, assert_matches_eager, watched
from xla_dynamo.calls.calls import bind
from xla_dynamo.calls.steps import steps_of
from xla_dynamo.execution import compiled_graph
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower import lower
from xla_dynamo.runtime.clients import placement_of
from xla_dynamo.runtime.executables import Executable

TARGET = Target("cpu", partitions=8)
# No two of these, nor their products with the number of heads, are one size.
BATCH, SEQUENCE, HEADS, FEATURES = 3, 5, 2, 16
# Elements of the values of random functions.
MOST = 3000


def run(gm, *inputs):
    """The results of a graph as a program for several devices, run on one."""
    program = lower(gm, static_values(gm), TARGET, Request())
    placement = placement_of(torch.device("cpu"))
    executable = Executable(program.module, placement)
    steps = steps_of(program, executable, False, None)
    return bind(program, steps, placement, "")(list(inputs))


# --- random functions --------------------------------------------------------------------------
# A step makes a value of another one, and of `pool`, which has elements for all others.


def take(pool, *shape):
    return pool[: math.prod(shape)].view(shape)


def merge(data, x, pool):
    start = data.draw(st.integers(0, x.dim() - 1), "start")
    return x.flatten(start, min(start + 1, x.dim() - 1))


def divide(data, x, pool):
    dim = data.draw(st.integers(0, x.dim() - 1), "dim")
    size = x.shape[dim]
    outer = data.draw(st.sampled_from([n for n in (1, 2, 3, 5) if size % n == 0]), "outer")
    return x.reshape(*x.shape[:dim], outer, size // outer, *x.shape[dim + 1 :])


def regroup(data, x, pool):
    """A reshape that may split and merge at once."""
    outer = data.draw(st.sampled_from([n for n in (1, 2, 3, 5) if x.numel() % n == 0]), "rows")
    return x.reshape(outer, -1) if x.numel() else x


def permute(data, x, pool):
    return x.permute(data.draw(st.permutations(range(x.dim())), "permutation"))


def multiply(data, x, pool):
    """By a matrix at the right, as `linear` does on rows."""
    columns = data.draw(st.sampled_from([0, 1, 2, 6]), "columns")
    return x @ take(pool, x.shape[-1], columns) if x.dim() > 1 else x


def with_itself(data, x, pool):
    """Stacks by stacks, the other one made otherwise or of the same merge."""
    stack = x if x.dim() == 3 else x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])
    other = take(pool, *stack.shape) if data.draw(st.booleans(), "an argument") else stack + 1
    if data.draw(st.booleans(), "over rows"):
        return stack.transpose(1, 2) @ other
    return stack @ other.transpose(1, 2)


def combine(data, x, pool):
    """With numbers of each row, column, or element, or with one number."""
    kind = data.draw(st.sampled_from(["one", "elements", "columns", "rows", "mask"]), "with")
    if kind == "one":
        return x * 2 + 1
    if kind == "elements":
        return x + take(pool, *x.shape)
    if kind == "columns":
        return x + take(pool, x.shape[-1])
    if kind == "rows":
        return x - x.sum(-1, keepdim=True)
    return torch.where(x.sum(-1, keepdim=True) > 0, x, 1)


def reduce(data, x, pool):
    return x.sum(data.draw(st.integers(0, x.dim() - 1), "over"), keepdim=x.dim() == 1)


def halve(data, x, pool):
    dim = data.draw(st.integers(0, x.dim() - 1), "dim")
    half = x.narrow(dim, 0, (x.shape[dim] + 1) // 2)
    return half if data.draw(st.booleans(), "one") else torch.cat([half, x], dim)


STEPS = (merge, merge, divide, regroup, permute, multiply, multiply, with_itself, combine, reduce,
         halve)  # fmt: skip


@settings(max_examples=50, deadline=None, database=None)
@given(st.data())
def test_random_functions(data):
    """Of whole numbers within bounds, so that no order of sums makes a difference."""
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 6]), min_size=2, max_size=4)
    x = torch.randint(-5, 6, data.draw(sizes, "sizes")).double()
    steps = data.draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=7), "steps")

    def f(x, pool):
        made = []
        for step in steps:
            if x.dim() and x.numel() <= MOST:
                x = step(data, x, pool).clamp(-9, 9)
                made.append(x)
        return made

    pool = torch.randint(-5, 6, (2 * MOST,)).double()
    gm = make_fx(f, tracing_mode="fake")(x, pool)
    for expected, actual in zip(gm(x, pool), run(gm, x, pool), strict=True):
        torch.testing.assert_close(actual, expected, **EXACT)


# --- models ------------------------------------------------------------------------------------


@pytest.fixture
def sharded(monkeypatch):
    """Programs are for several devices, and run on one."""
    monkeypatch.setattr(compiled_graph, "target_of", lambda *_, **__: TARGET)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, 24), nn.Linear(24, FEATURES)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    """Attention by stacks of matrices, with batch and heads merged."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        parts = self.inner(x).chunk(3, -1)
        query, key, value = (
            part.view(BATCH, SEQUENCE, HEADS, -1).transpose(1, 2).flatten(0, 1) for part in parts
        )
        weights = torch.softmax(torch.bmm(query, key.mT) / 3, -1)
        seen = torch.bmm(weights, value).view(BATCH, HEADS, SEQUENCE, -1)
        return self.outer(seen.transpose(1, 2).flatten(2))


class Llama(nn.Module):
    """A block with rotated positions, and with heads that share keys and values."""

    def __init__(self, key_heads):
        super().__init__()
        self.size, self.key_heads = FEATURES // HEADS, key_heads
        self.query = nn.Linear(FEATURES, FEATURES, bias=False)
        self.both = nn.Linear(FEATURES, 2 * key_heads * self.size, bias=False)
        self.outer = nn.Linear(FEATURES, FEATURES, bias=False)
        self.gate = nn.Linear(FEATURES, 24, bias=False)
        self.up, self.down = nn.Linear(FEATURES, 24), nn.Linear(24, FEATURES)
        self.first, self.second = nn.RMSNorm(FEATURES), nn.RMSNorm(FEATURES)

    def rotated(self, x):
        angle = torch.outer(torch.arange(SEQUENCE), 0.1 ** torch.arange(self.size // 2)).repeat(
            1, 2
        )
        left, right = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-right, left], -1) * angle.sin()

    def forward(self, x):
        y = self.first(x)
        heads = [self.query(y), *self.both(y).chunk(2, -1)]
        q, k, v = (h.view(BATCH, SEQUENCE, -1, self.size).transpose(1, 2) for h in heads)
        seen = F.scaled_dot_product_attention(
            self.rotated(q), self.rotated(k), v, is_causal=True, enable_gqa=True
        )
        x = x + self.outer(seen.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def encoder(**how):
    return nn.TransformerEncoderLayer(FEATURES, HEADS, 24, dropout=0.0, **how)


MODELS = {
    "perceptron": Mlp,
    "attention": Attention,
    "llama": lambda: Llama(HEADS),
    "grouped queries": lambda: Llama(1),
    "encoder": lambda: encoder(batch_first=True, norm_first=True),
    "sequence first": lambda: encoder(activation="gelu"),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_no_product_is_of_merged_dimensions(sharded, make):
    """Neither forward nor backward."""
    torch.manual_seed(0)
    run, built = watched(make())
    torch._dynamo.reset()
    x = torch.randn(BATCH, SEQUENCE, FEATURES, requires_grad=True)
    assert_matches_eager(run, x, rtol=1e-4, atol=1e-5)
    assert len(built) == 2
    products = re.findall(r"dot_general.* : (.*)", "\n".join(str(b.program.module) for b in built))
    assert len(products) >= 6
    merged = {str(BATCH * SEQUENCE), str(BATCH * HEADS)}
    for types in products:
        assert not merged & set(re.findall(r"(\d+)x", types)), types


def test_a_forward_pass_has_no_reshape_around_products(sharded):
    run, built = watched(Mlp())
    torch._dynamo.reset()
    with torch.no_grad():
        run(torch.randn(BATCH, SEQUENCE, FEATURES))
    assert "stablehlo.reshape" not in str(built[0].program.module)
