"""Serving loops with exact sizes: one trace by Dynamo, one executable for each size that comes.

Cold: nothing is cached on disk, and Dynamo starts anew in each test.
"""

import pytest
import torch
import transformers

from tests.compiling import assert_matches_eager, compiled_whole
from tests.growing_caches import gpt2_step

LENGTHS = [pytest.param(6, id="6"), pytest.param(30, id="30", marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", LENGTHS)
def test_bert_at_many_lengths(count, traces, executables):
    config = transformers.BertConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )
    model = transformers.BertModel(config).eval()
    run = compiled_whole(
        lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state,
        dynamic=True,
        buckets="exact",
    )
    for _ in range(2):  # the second time, nothing is compiled
        for length in range(5, 5 + count):
            ids = torch.randint(0, 1000, (3, length))
            mask = (torch.arange(length) < torch.tensor([[length], [3], [1]])).long()
            with torch.no_grad():
                assert_matches_eager(run, ids, mask, atol=1e-5, rtol=1e-4)
        assert executables() == count
    assert traces() == 1


@pytest.mark.usefixtures("others_may_warn")  # transformers 5.24 renames past_key_values
@pytest.mark.parametrize("count", LENGTHS)
def test_gpt2_with_past_keys(count, traces, executables):
    step = gpt2_step()
    run = compiled_whole(step, dynamic=True, buckets="exact")
    with torch.no_grad():
        prompt = step(torch.randint(0, 1000, (3, 5)), None)[1]
        for _ in range(2):
            past, expected_past = prompt, prompt
            for _ in range(count):
                ids = torch.randint(0, 1000, (3, 1))
                logits, past = run(ids, past)
                expected, expected_past = step(ids, expected_past)
                torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
            assert executables() == count
    assert traces() == 1
