"""Buckets of whole models: BERT at many lengths, GPT-2 with a cache that grows.

Cold: nothing is cached on disk, and Dynamo starts anew in each test. What stands behind the
elements of an input is NaN, or a number that is no index.
"""

import pytest
import torch
import transformers

from tests.comparison import compare
from tests.compiling import compiled_whole
from tests.growing_caches import gpt2_step
from tests.padding import harmful_padding


@pytest.fixture(autouse=True)
def _padding():
    with harmful_padding():
        yield


@pytest.mark.usefixtures("others_may_warn")
def test_bert(traces, executables):
    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    model = transformers.BertModel(config).eval()

    def f(ids, mask):
        return model(input_ids=ids, attention_mask=mask).last_hidden_state

    run = compiled_whole(f, dynamic=True, buckets=(4, 8, 16))
    with torch.no_grad():
        for length, count in ((5, 1), (7, 2), (8, 2), (9, 3), (16, 3), (1, 4)):
            ids = torch.randint(0, 1000, (3, length))
            mask = (torch.arange(length) < torch.tensor([[length], [3], [1]])).long()
            torch.testing.assert_close(run(ids, mask), f(ids, mask), atol=1e-5, rtol=1e-5)
            assert executables() == count
    assert traces() == 2


@pytest.mark.usefixtures("others_may_warn")  # transformers 5.24 renames past_key_values
def test_gpt2_with_a_growing_cache(traces, executables):
    step = gpt2_step()
    run = compiled_whole(step, dynamic=True, buckets=(4, 8, 16))
    with torch.no_grad():
        past = expected_past = step(torch.randint(0, 1000, (3, 5)), None)[1]
        for _ in range(6):  # the cache of 5 to 10 places
            ids = torch.randint(0, 1000, (3, 1))
            logits, past = run(ids, past)
            expected, expected_past = step(ids, expected_past)
            compare((expected, expected_past), (logits, past), values=True, atol=1e-5, rtol=1e-5)
    assert traces() == 1
    assert executables() == 3
