"""accelerate: a model compiled in place goes through `prepare`; its own settings refuse ours."""

import copy

import accelerate
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.libraries.recipes import run_recipe
from xla_dynamo.runtime import metrics


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)


def test_accelerator():
    model = Classifier()
    reference = copy.deepcopy(model)
    loader = DataLoader(TensorDataset(torch.randn(12, 8), torch.randint(0, 3, (12,))), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eager = torch.optim.SGD(reference.parameters(), lr=0.1)
    metrics.clear_all()
    run_recipe("accelerate", model=model, optimizer=optimizer, loader=loader)
    assert metrics.counter_value("UncachedCompile") == 2  # forward and backward
    for x, y in loader:
        eager.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        eager.step()
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


@pytest.mark.parametrize(
    "make",
    [
        lambda: accelerate.Accelerator(dynamo_backend="openxla"),
        lambda: accelerate.utils.TorchDynamoPlugin(backend="openxla"),
    ],
    ids=["Accelerator", "TorchDynamoPlugin"],
)
def test_its_list_of_backends_is_closed(make):
    """If this fails, accelerate knows the name: docs/recipes.md can say so."""
    with pytest.raises(ValueError, match=r"(?i)openxla"):
        make()
