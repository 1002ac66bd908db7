"""Programs of which switches leave out passes run, and have eager's numbers."""

import copy

import jax
import numpy as np
import pytest
import torch
from torch import nn

import xla_dynamo
from tests.compiling import compiled, watched
from tests.packing import Block, always, needs_onednn  # noqa: F401
from tests.spmd.sharding import WIDE
from xla_dynamo import spmd
from xla_dynamo.lowerings.passes.switches import Switches, switched
from xla_dynamo.lowerings.passes.table import PASSES
from xla_dynamo.runtime.cpu.script_layout import TARGET

SKIPPED = [p.name for p in PASSES if not p.is_needed]
SWITCHES = {
    **{f"limit={n}": Switches(verify=True, limit=n) for n in (0, 1, 2, 3, 5)},
    **{f"skip={n}": Switches(verify=True, skip=frozenset({n})) for n in SKIPPED},
    "skip=all": Switches(verify=True, skip=frozenset(SKIPPED)),
}


@pytest.fixture(params=SWITCHES)
def switches(request):
    with switched(SWITCHES[request.param]):
        yield request.param


class Net(nn.Module):
    """Something for each pass: convolutions, attention, reductions, an update, exponentials."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.register_buffer("cache", torch.zeros(2, 16, 8))

    def forward(self, x):
        hidden = self.norm(self.conv(x)).relu().flatten(2).transpose(1, 2)
        hidden = self.layer(hidden)
        cache = self.cache.clone()
        cache[:, 4:8] = hidden[:, :4].exp()
        return cache + hidden.softmax(-1), (hidden + 1e3) - 1e3


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.every(5)
def test_training(switches):
    """The permutations that the forward's results have are those that the backward is told.

    No mark stays, where its pass is left out: XLA would be given attributes that it does not know.
    """
    model, x = Net(), torch.randn(2, 3, 4, 4)
    reference = copy.deepcopy(model)
    run, built = watched(model)
    actual, expected = run(x), reference(x)
    close(actual, expected)
    sum(y.square().sum() for y in actual).backward()
    sum(y.square().sum() for y in expected).backward()
    for given, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        close(given.grad, wanted.grad)
    assert len(built) == 2
    for event in built:
        assert "xla_dynamo.result" not in event.stablehlo
        assert "xla_dynamo.any_permutation" not in event.stablehlo


@needs_onednn
@pytest.mark.every(3)
def test_packed_convolutions(switches):
    """What stands for a packed convolution is always written as a call."""
    model, x = nn.Sequential(Block(), Block()), torch.randn(2, 8, 6, 6)
    run, built = watched(model, freeze=True)
    with torch.no_grad():
        close(run(x), model(x))
    (event,) = built
    text = str(event.program.module)
    assert text.count(f"@{TARGET}(") == 4
    assert "xla_dynamo.packed_convolution" not in text


@pytest.mark.every(3)
def test_sharded_programs(switches):
    """Manual regions are always gathered."""
    x, w = torch.randn(16, 32), torch.randn(32, 24)

    def product(x, w):
        return spmd.all_reduce(x @ w, axis="model")

    places = [(("data",), "model"), ("model", None)]
    mapped = spmd.shard_map(product, WIDE, places, ("data", None))
    result = compiled(lambda x, w: mapped(x.sin(), w) * 2)(x, w)
    close(result, x.sin() @ w * 2)


@pytest.mark.every(3)
def test_parts_of_programs_of_jax(switches):
    function, weights = xla_dynamo.jax.to_jax(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    x = torch.randn(3, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    model.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in weights.items()})
    result = jax.jit(function)(weights, x.numpy())
    close(torch.from_numpy(np.array(result)), model(x).detach())
