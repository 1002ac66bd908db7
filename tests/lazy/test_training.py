"""Training loops on the lazy device: the losses of eager, two programs, and no growth."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import xla_dynamo
from xla_dynamo.lazy import contents
from xla_dynamo.runtime.metrics import counter_value

XLA = xla_dynamo.device()
STEPS = 10


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            # A bias before a batch norm has gradients of rounding alone, and AdamW's steps of it
            # would reach the running mean.
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(4 * 5 * 5, 10)

    def forward(self, x):
        return self.head(self.body(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 17)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.layer(self.embed(x), mask, is_causal=True)).flatten(0, 1)


def images(generator):
    x = torch.randn(8, 1, 12, 12, generator=generator)
    return x, torch.randint(0, 10, (8,), generator=generator)


def tokens(generator):
    x = torch.randint(0, 17, (4, 9), generator=generator)
    return x[:, :-1], x[:, 1:].flatten()


def train(device, make, batch, optimizer, *, steps=STEPS, after=lambda step: None):
    """The losses of some steps, and the model."""
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = optimizer(model.parameters())
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(steps):
        x, y = (t.to(device) for t in batch(generator))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        xla_dynamo.sync()
        losses.append(loss.item())
        after(step)
    return losses, model


MODELS = {"conv": (ConvNet, images), "transformer": (Transformer, tokens)}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_are_eagers_and_two_programs_suffice(model, optimizer):
    make, batch = MODELS[model]
    expected, trained = train("cpu", make, batch, OPTIMIZERS[optimizer])
    compiled, cells = [], []

    def after(step):
        compiled.append(counter_value("UncachedCompile"))
        cells.append(len(contents.live_cells()))

    losses, model = train(XLA, make, batch, OPTIMIZERS[optimizer], after=after)
    torch.testing.assert_close(losses, expected, rtol=2e-4, atol=1e-5)
    assert len(set(expected)) == STEPS
    for name, value in model.state_dict().items():
        # AdamW makes steps of equal size of gradients that are rounding alone, as of key biases.
        if optimizer == "sgd" or "running" in name:
            same = trained.state_dict()[name]
            torch.testing.assert_close(value.cpu(), same, rtol=2e-2, atol=2e-2)
    # The first step makes the optimizer's state, the second finds it.
    assert compiled[1:] == [compiled[1]] * (STEPS - 1)
    assert compiled[1] - compiled[0] <= 1
    assert cells[1:] == [cells[1]] * (STEPS - 1)


def test_a_schedule_compiles_nothing_new():
    rates = []

    def optimizer(parameters):
        made = torch.optim.AdamW(parameters, lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(made, STEPS)
        made.register_step_post_hook(lambda *_: (schedule.step(), rates.append(made)))
        return made

    compiled = []
    expected, _ = train("cpu", ConvNet, images, optimizer)
    losses, _ = train(
        XLA,
        ConvNet,
        images,
        optimizer,
        after=lambda step: compiled.append(counter_value("UncachedCompile")),
    )
    torch.testing.assert_close(losses, expected, rtol=2e-4, atol=1e-5)
    assert compiled[1:] == [compiled[1]] * (STEPS - 1)


def test_clipping_and_accumulation():
    def run(device):
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            for _ in range(2):
                model(torch.randn(3, 4, generator=generator).to(device)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach().cpu()

    torch.testing.assert_close(run(XLA), run("cpu"))


def test_a_model_of_bfloat16():
    def make():
        return nn.Sequential(
            nn.Flatten(), nn.Linear(144, 16), nn.GELU(), nn.Linear(16, 10)
        ).bfloat16()

    def batch(generator):
        x, y = images(generator)
        return x.bfloat16(), y

    expected, _ = train("cpu", make, batch, OPTIMIZERS["adamw"])
    losses, model = train(XLA, make, batch, OPTIMIZERS["adamw"])
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(losses, expected, rtol=5e-2, atol=5e-2)


def test_dropout_draws_anew_at_each_step_and_repeats_with_the_seed():
    def make():
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 10))

    first, _ = train(XLA, make, images, OPTIMIZERS["sgd"])
    again, model = train(XLA, make, images, OPTIMIZERS["sgd"])
    assert first == again
    x = torch.ones(2, 144, device=XLA)
    assert not torch.equal(model(x).cpu(), model(x).cpu())


def test_a_loop_without_sync_is_right_too():
    def run(device):
        x = torch.ones(3, device=device)
        for step in range(60):
            x = x * 0.99 + step % 3
            x[step % 3] -= 0.5
        return x.cpu()

    torch.testing.assert_close(run(XLA), run("cpu"))
