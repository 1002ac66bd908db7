"""torchao: a model whose weights are int8 tensors of a subclass is one graph."""

import copy

import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from tests.libraries.recipes import run_recipe
from xla_dynamo.runtime import metrics


def test_int8_weights():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).eval()
    x = torch.randn(4, 64)
    reference = copy.deepcopy(model)
    quantize_(reference, Int8WeightOnlyConfig())
    with torch.no_grad():
        unquantized, expected = model(x), reference(x)
    metrics.clear_all()
    names = run_recipe("torchao", model=model, x=x)
    assert metrics.counter_value("UncachedCompile") == 1
    assert type(model[0].weight) is not nn.Parameter  # the subclass, which holds int8
    torch.testing.assert_close(names["logits"], expected)
    assert not torch.equal(expected, unquantized)
