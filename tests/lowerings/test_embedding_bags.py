"""Bags of embeddings, known to be of one size or not, are eager's."""

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from tests.compiling import compiled

NAN = float("nan")


def offsets_of(kind):
    """Where bags begin: of 24 indices, made inside the graph or given."""
    return {
        "two dimensions": None,
        "counted": lambda given: torch.arange(0, 24, 4),
        "counted as int32": lambda given: torch.arange(0, 24, 4, dtype=torch.int32),
        "counted, with the last": lambda given: torch.arange(0, 25, 4),
        "counted, and too few": lambda given: torch.arange(0, 20, 4),
        "counted by another": lambda given: torch.arange(0, 18, 3),
        "counted from two": lambda given: torch.arange(6) * 4 + (given[:1] * 0),
        "one bag": lambda given: torch.zeros(1, dtype=torch.int64),
        "all begin at once": lambda given: torch.zeros(6, dtype=torch.int64),
        "given": lambda given: given,
    }[kind]


KINDS = [
    "two dimensions",
    "counted",
    "counted as int32",
    "counted, with the last",
    "counted, and too few",
    "counted by another",
    "counted from two",
    "one bag",
    "all begin at once",
    "given",
]


@pytest.fixture(autouse=True)
def _cold(cold):
    torch.manual_seed(0)


def bags(kind, mode, padding_idx, weighted):
    make = offsets_of(kind)

    def f(indices, weight, given, weights):
        settings = {
            "mode": mode,
            "padding_idx": padding_idx,
            "per_sample_weights": weights if weighted else None,
        }
        if make is None:
            shaped = {**settings}
            if weighted:
                shaped["per_sample_weights"] = weights.view(6, 4)
            return F.embedding_bag(indices.view(6, 4), weight, **shaped)
        offsets = make(given)
        if offsets.dtype is torch.int32:
            indices = indices.int()
        last = kind == "counted, with the last"
        return F.embedding_bag(indices, weight, offsets, include_last_offset=last, **settings)

    return f


@pytest.mark.every(6)
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
@pytest.mark.parametrize("kind", KINDS)
def test_bags(kind, mode, padding_idx):
    weighted = mode == "weighted"
    f = bags(kind, "sum" if weighted else mode, padding_idx, weighted)
    indices = torch.randint(0, 9, (24,))
    indices[4:8] = 3  # a bag of padding alone
    given = torch.tensor([0, 4, 4, 9, 15, 24])
    run = compiled(f, dynamic=False)
    for special in (None, NAN, float("-inf")):
        weight = torch.randn(9, 5)
        if special is not None:
            weight[2, 1], weight[3, 2] = special, special  # the second one is padding's

        def results(f, weight=weight):
            leaves = [weight.clone().requires_grad_(), torch.randn(24).requires_grad_()]
            torch.manual_seed(1)
            leaves[1].data = torch.randn(24)
            y = f(indices, leaves[0], given, leaves[1])
            wanted = leaves if weighted else leaves[:1]
            return y, *torch.autograd.grad(y.square().sum(), wanted)

        torch.testing.assert_close(results(run), results(f), equal_nan=True)
        with torch.no_grad():
            inputs = (indices, weight, given, torch.randn(24))
            torch.testing.assert_close(run(*inputs), f(*inputs), equal_nan=True)


@pytest.mark.parametrize("kind", ["two dimensions", "counted", "counted, with the last", "given"])
def test_bags_of_one_size_are_not_scattered(kind):
    f = bags(kind, "mean", 1, False)
    given = torch.tensor([0, 4, 4, 9, 15, 24])
    inputs = (torch.randint(0, 9, (24,)), torch.randn(9, 5), given, torch.randn(24))
    with torch.no_grad():
        (built,) = xla_dynamo.explain(f)(*inputs).executables
    assert ("stablehlo.scatter" in built.stablehlo) == (kind == "given")
