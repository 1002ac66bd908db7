"""Graphs with dynamic sizes without any option: what a user gets who knows none.

Cold: nothing is cached on disk, and Dynamo starts anew in each test.
"""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

import xla_dynamo
from tests.comparison import compare
from tests.compiling import compiled_whole
from xla_dynamo.dynamo.recompile_limit import raise_recompile_limit
from xla_dynamo.graphs.buckets import Bucket, bucket_of
from xla_dynamo.variants import background
from xla_dynamo.variants.bounded_calls import BoundedCall

ENDS = (2, 1 << 24)


@pytest.mark.parametrize(
    ("size", "length", "batch"),
    [
        (2, (2, 32), (2, 4)),
        (4, (2, 32), (2, 4)),
        (5, (2, 32), (5, 8)),
        (32, (2, 32), (17, 32)),
        (33, (33, 64), (33, 48)),
        (49, (33, 64), (49, 64)),
        (96, (65, 128), (65, 96)),
        (97, (65, 128), (97, 128)),
        (1000, (513, 1024), (769, 1024)),
    ],
)
def test_automatic_buckets(size, length, batch):
    assert bucket_of(size, "auto", ENDS) == Bucket(*length)
    assert bucket_of(size, "auto", ENDS, is_batch=True) == Bucket(*batch)


@pytest.mark.usefixtures("others_may_warn")
def test_a_text_of_any_length(executables):
    """32 lengths: the first as it is, then five buckets."""
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.BertModel(config).eval()
    lengths = torch.randperm(500, generator=torch.Generator().manual_seed(0))[:32] + 5
    run = torch.compile(model, backend="openxla")
    with torch.no_grad():
        for n in lengths.tolist():
            ids = torch.randint(0, 1000, (1, n))
            expected = model(ids).last_hidden_state
            torch.testing.assert_close(run(ids).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    assert executables() <= 6


@pytest.mark.usefixtures("others_may_warn")
def test_a_cache_that_grows(executables, traces):
    """The prompt, the first token, and caches of up to 32 and up to 64."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=400,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.pad_token_id = 0
    ids = torch.randint(1, 400, (1, 12))
    how = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}
    expected = model.generate(ids, **how)
    model.forward = torch.compile(model.forward, backend="openxla")
    for _ in range(2):
        assert torch.equal(model.generate(ids, **how), expected)
        assert executables() == 4
        assert traces() == 3


def test_training_with_dropout_and_a_last_smaller_batch(executables):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.GELU(), nn.Linear(8, 2))
    run = compiled_whole(model)
    sizes = [(8, 10), (8, 20), (8, 33), (8, 50), (3, 20), (8, 12), (3, 40), (8, 60)]
    for batch, length in sizes:
        run(torch.randn(batch, length, 6)).square().mean().backward()
    # A forward and a backward for the first, then lengths of 32 and 64, and each with both batches.
    assert executables() <= 2 * (1 + 2 + 4)
    before = executables()
    for batch, length in ((8, 11), (8, 55), (4, 64)):
        run(torch.randn(batch, length, 6)).square().mean().backward()
    assert executables() == before


def test_convolutions_are_compiled_for_each_size(executables):
    """By oneDNN, which bounded programs cannot call, they are several times as fast."""
    run = xla_dynamo.explain(nn.Conv2d(3, 4, 3), dynamic=True)
    with torch.no_grad():
        for n in (5, 6, 7, 6):
            report = run(torch.randn(n, 3, 8, 8))
    assert executables() == 3
    (told,) = report.not_bucketed
    assert "oneDNN" in told.reason


def test_what_is_refused_twice_is_not_tried_again():
    run = xla_dynamo.explain(lambda x: x.flip(0), dynamic=True)
    for n in (5, 40, 70, 130, 260):
        report = run(torch.randn(n))
    assert len(report.not_bucketed) == 2


def test_random_numbers(executables):
    """Forward and backward have the same, in each bucket, and they are spread over all elements."""

    def f(x):
        kept = F.dropout(x, 0.25)
        return kept, torch.rand_like(x), kept.square().sum(1)

    run = compiled_whole(f, dynamic=True, buckets=(4, 8, 16))
    for n in (6, 5, 7, 8, 9, 16):
        x = torch.rand(n, 11).requires_grad_()
        kept, drawn, _ = results = run(x)
        torch.autograd.backward(
            (results[0], results[2]), [torch.ones_like(r) for r in results[::2]]
        )
        where = kept != 0
        compare(kept.detach(), torch.where(where, x.detach() / 0.75, 0.0), values=True)
        compare(x.grad, where / 0.75 * (1 + 2 * kept.detach()), values=True)
        assert drawn.unique().numel() == drawn.numel()
        assert drawn.min() >= 0
        assert drawn.max() < 1
        assert 0.5 < where.float().mean() < 1
    assert executables() == 2 * 3


def test_random_numbers_that_are_drawn_again_are_compiled_for_each_size():
    def f(x):
        return checkpoint(lambda x: F.dropout(x, 0.25).sin(), x, use_reentrant=False)

    run = xla_dynamo.explain(f, dynamic=True)
    for n in (6, 5):
        x = torch.rand(n, 11).requires_grad_()
        report = run(x)
        report.result.sum().backward()
        compare(x.grad != 0, report.result != 0, values=True)
    assert "draws random numbers again" in report.not_bucketed[0].reason


def test_buckets_are_refined_where_padding_takes_long(executables, monkeypatch):
    """Here, after each call; else when the padding has taken the time of a compilation."""
    run = xla_dynamo.explain(lambda x: x.softmax(1).cumsum(1) @ x.mT, dynamic=True)
    always = property(lambda self: 1e9, lambda *_: None)
    monkeypatch.setattr(BoundedCall, "padding_seconds", always, raising=False)
    monkeypatch.setattr(background, "submit", lambda job: job() is None)  # at once
    for n in (300, 257, 270, 512, 400, 257):
        x = torch.randn(2, n, 3)
        report = run(x)
        torch.testing.assert_close(report.result, x.softmax(1).cumsum(1) @ x.mT)
    sizes = [list(built.sizes.values())[1] for built in report.executables]
    assert sizes == [300, "257 to 512", "257 to 384", "385 to 512"]
    assert executables() == 4


def test_many_graphs_of_one_function(traces):
    """Dynamo's limit of 8 is raised: behind it everything would run in eager torch."""
    run = compiled_whole(lambda x: x.relu() + 1)
    for rank in range(12):
        run(torch.ones([2] * rank))
    assert traces() == 12
    with torch._dynamo.config.patch(recompile_limit=5):
        raise_recompile_limit()
        assert torch._dynamo.config.recompile_limit == 5, "as the user has set it"


def test_the_bucket_that_a_growing_size_reaches_is_compiled_before(executables, monkeypatch):
    begun = []
    monkeypatch.setattr(background, "submit", lambda job: begun.append(job) is None)
    run = compiled_whole(lambda x: x.softmax(1), dynamic=True)
    for n in (12, 13, 14, 15, 16, 17):
        run(torch.randn(2, n, 3))
        assert not begun
    run(torch.randn(2, 18, 3))  # beyond the half of 32
    (compile_next,) = begun
    for n in (19, 30, 31, 32):
        run(torch.randn(2, n, 3))
    compile_next()
    before = executables()
    for n in (33, 34):
        x = torch.randn(2, n, 3)
        torch.testing.assert_close(run(x), x.softmax(1))
    assert executables() == before == 3
    assert len(begun) == 1


@pytest.mark.parametrize("rank", [3, 4, 7])
def test_many_dynamic_dimensions_are_not_padded_to_a_multiple(rank):
    """32 in each of seven would be 34 billion elements."""
    run = xla_dynamo.explain(lambda x: x.relu() + 1, dynamic=True)
    for n in (3, 4, 5, 6):
        x = torch.randn([n] * rank)
        report = run(x)
        torch.testing.assert_close(report.result, x.relu() + 1)
    bounds = [next(iter(built.sizes.values())) for built in report.executables]
    assert bounds == ([3, "2 to 4", "5 to 8"] if rank < 7 else [3, "2 to 4", 5, 6])
