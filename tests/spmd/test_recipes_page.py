"""The examples of docs/sharding.md, "Recipes", shard models, and change no number."""

import pathlib
import re

import pytest
import torch

from tests.spmd.sharding import WIDE, collectives, sharded
from xla_dynamo import spmd

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "sharding.md"
SECTION = re.search(r"^## Recipes$(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
SETUP, *EXAMPLES = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
COLLECTIVES = {
    "data_parallel": set(),  # of inference
    "training": set(),  # the same model, trained
    "fully_sharded": {"all-gather"},
    "tensor_parallel": {"all-reduce"},
    "with_a_plan": {"all-gather", "reduce-scatter"},
    "sequence_parallel": {"all-to-all"},
    "expert_parallel": {"all-to-all"},
}


@pytest.mark.parametrize(("name", "example"), list(zip(COLLECTIVES, EXAMPLES, strict=True)))
def test_examples(name, example):
    names = {"torch": torch, "spmd": spmd, "mesh": WIDE}
    exec(SETUP, names)
    exec(example, names)
    model, tokens = names["model"], names["tokens"]

    def logits(tokens):
        result = model(tokens)
        return result if isinstance(result, torch.Tensor) else result.logits

    with torch.no_grad():
        result, executable = sharded(logits, tokens)
        torch.testing.assert_close(result, logits(tokens), rtol=1e-4, atol=1e-4)
    assert set(collectives(executable)) == COLLECTIVES[name]
    assert len(executable.executable.placement.devices) == 8
