"""Continuous batching by transformers: one program for a forward, its cache written behind it."""

import pytest
import torch
import transformers
from torch._dynamo.utils import counters
from transformers.generation import CompileConfig, ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from tests.compiling import compiled_anew
from xla_dynamo.dynamo.paged_cache import trace_paged_caches
from xla_dynamo.execution.precompile import precompile
from xla_dynamo.variants.meanwhile import compiling_ahead

pytestmark = [pytest.mark.usefixtures("others_may_warn")]

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}


def model(**kwargs):
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**SIZES, **{"num_hidden_layers": 2, **kwargs})
    config._attn_implementation = "sdpa"
    return transformers.Qwen2ForCausalLM(config).eval()


def generated(of, lengths, tokens=6, **kwargs):
    """The tokens that a model generates behind prompts of these lengths."""
    torch.manual_seed(1)
    prompts = [torch.randint(5, 64, (n,)).tolist() for n in lengths]
    wanted = transformers.GenerationConfig(
        max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    settings = ContinuousBatchingConfig(
        **{"num_blocks": 16, "page_size": 16, "max_batch_tokens": 64, **kwargs}
    )
    found = of.generate_batch(
        prompts, generation_config=wanted, continuous_batching_config=settings, progress_bar=False
    )
    return {prompts.index(out.prompt_ids): out.generated_tokens for out in found.values()}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("kwargs", "lengths"),
    [
        ({}, (5, 9, 14, 3)),
        # The layers of both kinds, and prompts and answers that are longer than the window.
        (
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            (5, 9, 14, 3),
        ),
        # A prompt of several pieces, each of which reads what the ones before have written.
        ({}, (90, 7, 110)),
    ],
    ids=["full", "sliding", "in pieces"],
)
def test_the_tokens_are_those_of_eager(kwargs, lengths, executables):
    m = model(**kwargs)
    expected = generated(m, lengths, tokens=12)
    assert len(expected) == len(lengths)
    assert all(len(tokens) == 12 for tokens in expected.values())
    counters.clear()
    m.compile(backend="openxla")
    for _ in range(2):
        assert generated(m, lengths, tokens=12) == expected
    assert not counters["graph_break"], counters["graph_break"]
    assert executables() <= 12


def test_prompts_share_what_they_begin_with():
    """Requests that begin alike read the same rows of the cache."""
    m = model(num_hidden_layers=1)
    begin = list(range(5, 37))
    prompts = [begin, [*begin, 40, 41], [*begin, 50]]

    def run():
        wanted = transformers.GenerationConfig(
            max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        settings = ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=40)
        found = m.generate_batch(
            prompts,
            generation_config=wanted,
            continuous_batching_config=settings,
            progress_bar=False,
        )
        return sorted((out.prompt_ids, out.generated_tokens) for out in found.values())

    expected = run()
    m.compile(backend="openxla")
    assert run() == expected


def test_what_transformers_compiles_itself():
    """With padding: the rows of tokens that are not there go where nobody reads."""
    m = model(num_hidden_layers=1)
    expected = generated(m, (5, 9, 14, 3))
    how = CompileConfig(backend="openxla", mode=None, fullgraph=False, dynamic=None)
    assert generated(m, (5, 9, 14, 3), varlen_compile_config=how) == expected


def test_other_backends_keep_it_out_of_graphs():
    m = model(num_hidden_layers=1)
    expected = generated(m, (5, 9))
    trace_paged_caches()
    counters.clear()
    m.compile(backend="eager")
    assert generated(m, (5, 9)) == expected
    assert counters["graph_break"]


def test_releases_that_are_not_known_keep_it_out_of_graphs(monkeypatch):
    original = PagedAttentionCache.update
    while hasattr(original, "in_graphs_of_xla_dynamo"):
        original = original.__wrapped__

    def update(self, *args):
        return original(self, *args)

    monkeypatch.setattr(PagedAttentionCache, "update", update)
    trace_paged_caches()
    assert PagedAttentionCache.update is update


def test_the_installed_release_is_known():
    trace_paged_caches()
    assert PagedAttentionCache.update.in_graphs_of_xla_dynamo


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_are_written_when_the_program_is_over(dynamic):
    """In the order of the writes, and cut to the sizes of the call."""

    def f(x, index, rows):
        before = x.index_select(0, index) * 2
        torch.ops.xla.write_rows(x, index, rows + 1)
        torch.ops.xla.write_rows(x, index[:2], rows[:2])
        return before, rows * 3

    run = compiled_anew(f, dynamic=dynamic)
    for n in (3, 4, 9, 40, 3):
        x, rows = torch.randn(64, 2), torch.randn(n, 2)
        index = torch.randperm(64)[:n]
        like = x.clone()
        expected = f(like, index, rows)
        torch.testing.assert_close(run(x, index, rows), expected, rtol=0, atol=0)
        assert torch.equal(x, like)


def test_inputs_that_change_do_so_before_an_effect_that_prints(capfd):
    """Such effects stay in the program's own list, and the write is there behind the call."""

    def f(x):
        x.add_(1)
        torch.ops.aten._print("done")
        return x * 2

    run = compiled_anew(f, dynamic=True)
    for n in (3, 4):
        x = torch.zeros(n)
        assert torch.equal(run(x), torch.full((n,), 2.0))
        assert torch.equal(x, torch.ones(n))
    assert capfd.readouterr().out.count("done") == 2


@pytest.mark.parametrize("buckets", ["auto", "exact"])
def test_compiling_ahead_writes_no_rows(buckets):
    def f(x, index, rows):
        torch.ops.xla.write_rows(x, index, rows + 1)
        return rows * 3

    torch._dynamo.reset()
    run = torch.compile(f, backend="openxla", dynamic=True, options={"buckets": buckets})
    x = torch.ones(64, 2)
    calls = [[x, torch.arange(n), torch.ones(n, 2)] for n in (3, 9)]
    with torch.no_grad():
        assert precompile(run, shapes=calls).executables > 0
        x = torch.ones(64, 2)
        with compiling_ahead():
            assert torch.equal(run(x, *calls[0][1:]), torch.zeros(3, 2))
        assert torch.equal(x, torch.ones(64, 2))
        assert torch.equal(run(x, *calls[0][1:]), torch.full((3, 2), 3.0))
        assert torch.equal(x[:4], torch.tensor([[2.0, 2]] * 3 + [[1, 1]]))
