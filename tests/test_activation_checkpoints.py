"""Activation checkpoints inside of compiled code and around it, against eager."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpointing

from tests.compiling import assert_matches_eager, assert_module_matches_eager, compiled, leaf

reentrancy = pytest.mark.parametrize("use_reentrant", [False, True], ids=["new", "reentrant"])


class Checkpointed(nn.Module):
    """A block whose activations are computed anew in the backward."""

    def __init__(self, *layers, use_reentrant=False):
        super().__init__()
        self.block = nn.Sequential(*layers)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return checkpointing.checkpoint(self.block, x, use_reentrant=self.use_reentrant)


@reentrancy
def test_checkpoint(use_reentrant):
    module = Checkpointed(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), use_reentrant=use_reentrant)
    assert_module_matches_eager(
        nn.Sequential(module, nn.Tanh()), leaf(3, 4), calls=2, fullgraph=not use_reentrant
    )


@reentrancy
def test_nested_checkpoints(use_reentrant):
    inner = Checkpointed(nn.Linear(4, 4), nn.Sigmoid(), use_reentrant=use_reentrant)
    outer = Checkpointed(nn.Linear(4, 4), inner, nn.Tanh(), use_reentrant=use_reentrant)
    assert_module_matches_eager(outer, leaf(3, 4), fullgraph=not use_reentrant)


def test_checkpoint_outside_of_the_compiled_function():
    f = compiled(lambda x: (x.sin() * x).exp())
    x, y = leaf(5), leaf(5)
    y.data.copy_(x)
    checkpointing.checkpoint(f, x, use_reentrant=False).sum().backward()
    (y.sin() * y).exp().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_selective_checkpoint():
    """Matrix products are saved, the rest is computed anew."""
    saved = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def policy():
        return checkpointing.create_selective_checkpoint_contexts(saved)

    def f(x, w):
        def block(x, w):
            return (x @ w).sigmoid() @ w

        return checkpointing.checkpoint(block, x, w, use_reentrant=False, context_fn=policy)

    assert_matches_eager(compiled(f), leaf(3, 4), leaf(4, 4))


@reentrancy
def test_checkpoint_repeats_the_same_dropout(use_reentrant):
    """The gradient is 2 where the output is kept, 0 where it is dropped."""

    def f(x):
        def block(x):
            return F.dropout(x * 1.0, 0.5)

        return checkpointing.checkpoint(block, x, use_reentrant=use_reentrant)

    x = torch.ones(200, requires_grad=True)
    y = compiled(f, fullgraph=not use_reentrant)(x)
    y.sum().backward()
    assert 0 < (y == 0).sum() < 200
    torch.testing.assert_close(x.grad, y.detach())


@reentrancy
def test_checkpoint_around_compiled_dropout(use_reentrant):
    f, x = compiled(lambda x: F.dropout(x * 1.0, 0.5)), torch.ones(200, requires_grad=True)
    y = checkpointing.checkpoint(f, x, use_reentrant=use_reentrant)
    torch.randn(3)  # the generator moves on, and is put back for the second run
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


@reentrancy
def test_batch_norm_inside_a_checkpoint_counts_a_batch_once(use_reentrant):
    """Eager counts it twice, since it runs the block twice: AOTAutograd's doing, on any backend."""
    plain = nn.BatchNorm1d(4)
    x = leaf(6, 4)
    found = []
    for backend in ("openxla", "aot_eager"):
        block = Checkpointed(copy.deepcopy(plain), use_reentrant=use_reentrant)
        run = torch.compile(block, backend=backend)
        for _ in range(2):
            run(x).square().sum().backward()
        found.append(dict(block.block[0].state_dict()))
    for _ in range(2):
        plain(x)
    torch.testing.assert_close(found, [dict(plain.state_dict())] * 2)
