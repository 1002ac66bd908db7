"""Training of compiled modules, against eager: results, gradients, parameters and buffers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.compiling import assert_matches_eager, assert_module_matches_eager, compiled, leaf
from xla_dynamo.runtime import metrics


class Tied(nn.Module):
    """A language model's ends: one matrix embeds and projects."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, scale):
        return self.head(self.embedding(torch.tensor([1, 3, 3])) * scale)


def test_tied_weights():
    assert_module_matches_eager(Tied(), leaf(4), calls=2)


def test_empty_batch():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    assert_module_matches_eager(module, leaf(0, 2, 4, 4))
    assert_module_matches_eager(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), leaf(0, 4))


def test_gradients_accumulate():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    assert_module_matches_eager(module, leaf(5, 4), calls=4)


def test_the_same_layer_many_times():
    module = nn.Linear(4, 4)

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = module

        def forward(self, x):
            for _ in range(3):
                x = self.layer(x).tanh()
            return x

    assert_module_matches_eager(Loop(), leaf(2, 4))


class Net(nn.Module):
    """In-place activations, batch normalization, dropout that only eval leaves out."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3, momentum=0.3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        y = self.norm(self.conv(x))
        y.add_(0.3).relu_()
        y = y.mean((2, 3)).mul_(2)
        return self.head(y)


@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batch_norm_and_in_place_activations(format_):
    x = torch.randn(4, 2, 6, 6).to(memory_format=format_).requires_grad_()
    assert_module_matches_eager(Net().to(memory_format=format_), x, calls=3)


def test_train_and_eval_by_turns():
    module, x = Net(), leaf(4, 2, 6, 6)
    twin = copy.deepcopy(module)
    fast = compiled(twin)
    for training in (True, False, True, False):
        for m in (module, twin):
            m.train(training)
        assert_matches_eager(fast, x, eager=module, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(twin.state_dict(), module.state_dict())
    assert twin.norm.num_batches_tracked == 2


def test_batch_norm_of_cumulative_average():
    """Dynamo breaks the graph where the number of batches is read."""
    assert_module_matches_eager(
        nn.BatchNorm1d(3, momentum=None), leaf(5, 3), calls=3, fullgraph=False
    )


def test_instance_and_group_norm():
    layers = nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.GroupNorm(2, 4)
    assert_module_matches_eager(nn.Sequential(*layers), leaf(2, 4, 3, 3), calls=2)


def test_an_activation_overwritten_through_a_view():
    def f(x, w):
        y = x * w
        y[0].mul_(2)
        y.view(-1)[::2].add_(w.sum())
        return y.sin()

    assert_matches_eager(compiled(f), leaf(3, 4), leaf(4))


def test_a_whole_loop():
    """Twenty steps of AdamW on a small classifier end where eager's do."""

    def train(compile_):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
        f = compile_(lambda x, y: F.cross_entropy(module(x), y, label_smoothing=0.1))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        losses = []
        for _ in range(20):
            loss = f(torch.randn(16, 8), torch.randint(3, (16,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, list(module.parameters())

    metrics.clear_all()
    actual = train(compiled)
    assert metrics.counter_value("UncachedCompile") == 2
    torch.testing.assert_close(actual, train(lambda f: f), rtol=1e-4, atol=1e-4)
