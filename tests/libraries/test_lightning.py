"""Lightning: modules compiled in place, and by `torch.compile` with their training step."""

import copy

import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.libraries.recipes import run_recipe
from xla_dynamo.runtime import metrics

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Classifier(lightning.LightningModule):
    def __init__(self, logs=True):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.logs = logs

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        if self.logs:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def loader():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 8, generator=generator)
    return DataLoader(TensorDataset(x, torch.arange(12) % 3), batch_size=4)


@pytest.fixture
def trained(loader):
    """What training in eager makes of a module: its weights and the last loss."""
    module = Classifier()
    trainer = lightning.Trainer(max_epochs=2, **QUIET)
    trainer.fit(module, loader)
    return copy.deepcopy(module.state_dict()), trainer.callback_metrics["loss"]


def test_trainer(loader, trained):
    module = Classifier()
    metrics.clear_all()
    trainer = run_recipe("Lightning", module=module, loader=loader, quiet=QUIET)["trainer"]
    assert metrics.counter_value("UncachedCompile") == 2  # forward and backward
    torch.testing.assert_close(module.state_dict(), trained[0])
    torch.testing.assert_close(trainer.callback_metrics["loss"], trained[1])


LOGS_FAIL = pytest.mark.xfail(
    condition=torch.__version__.startswith("2.13"),
    reason="Dynamo of torch 2.13 cannot trace self.log, with any backend",
    raises=torch._dynamo.exc.InternalTorchDynamoError,
    strict=True,
)


@pytest.mark.parametrize(
    ("backend", "logs"),
    [
        ("openxla", False),
        pytest.param("openxla", True, marks=LOGS_FAIL),
        pytest.param("eager", True, marks=LOGS_FAIL),
    ],
)
def test_compiled_training_step(backend, logs, loader, trained):
    module = Classifier(logs)
    metrics.clear_all()
    compiled = torch.compile(module, backend=backend)
    lightning.Trainer(max_epochs=2, **QUIET).fit(compiled, loader)
    assert backend == "eager" or metrics.counter_value("UncachedCompile") >= 2
    torch.testing.assert_close(module.state_dict(), trained[0])
