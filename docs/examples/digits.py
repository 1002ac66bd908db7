"""A convolutional net on scikit-learn's digits, every training step one executable.

    python -m docs.examples.digits

At half-time a checkpoint is written, and from it the second half is trained again in eager PyTorch:
what `train_step` leaves in the model and the optimizer is all that eager needs.
"""

import argparse
import copy
import pathlib
from collections.abc import Callable, Sequence

import sklearn.datasets
import sklearn.model_selection
import torch
import torch.nn.functional as F
from torch import nn

import xla_dynamo
from docs.examples.progress import plot, track
from docs.examples.recipes.common import eager_step

BATCH = 64


def net() -> nn.Module:
    """8 x 8 grey images to 10 classes."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 10)),
    )


def data() -> list[torch.Tensor]:
    """Training images, held-out images (a quarter), training labels, held-out labels."""
    digits = sklearn.datasets.load_digits()
    images, labels = digits.images[:, None].astype("float32") / 16, digits.target
    split = sklearn.model_selection.train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )
    return [torch.tensor(part) for part in split]


def loss_fn(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of a batch."""
    return F.cross_entropy(model(images), labels)


class Training:
    """A model, its optimizer and the schedule of its learning rate."""

    def __init__(self, steps: int) -> None:
        """Make them for this many steps."""
        self.model = net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def parts(self) -> dict:
        """What a checkpoint holds, by name."""
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def state_dict(self) -> dict:
        """A copy of everything."""
        return copy.deepcopy({name: part.state_dict() for name, part in self.parts().items()})

    def load_state_dict(self, saved: dict) -> None:
        """Go back to a checkpoint."""
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])

    def run(self, step: Callable, data: Sequence[torch.Tensor], epochs: range, what: str) -> list:
        """Train, and return the losses."""
        images, labels = data[0], data[2]
        losses = []
        for epoch in track(epochs, what):
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
            for batch in order[: len(order) // BATCH * BATCH].split(BATCH):
                losses.append(float(step(images[batch], labels[batch])))
                self.schedule.step()
        return losses

    @torch.no_grad()
    def accuracy(self, data: Sequence[torch.Tensor]) -> float:
        """The share of held-out images that are recognised."""
        self.model.eval()
        share = (self.model(data[1]).argmax(1) == data[3]).float().mean()
        self.model.train()
        return float(share)


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Train, and print and return the accuracies of the whole run and of the resumed one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("digits"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    everything = data()
    half, steps = options.epochs // 2, options.epochs * (len(everything[0]) // BATCH)

    training = Training(steps)
    step = xla_dynamo.train_step(training.model, loss_fn, training.optimizer)
    losses = training.run(step, everything, range(half), "train_step, first half")
    torch.save(training.state_dict(), options.out / "half.pt")
    rest = range(half, options.epochs)
    whole = losses + training.run(step, everything, rest, "train_step, second half")

    resumed = Training(steps)
    resumed.load_state_dict(torch.load(options.out / "half.pt"))
    step = eager_step(resumed.model, loss_fn, resumed.optimizer)
    in_eager = losses + resumed.run(step, everything, rest, "resumed in eager")

    plot(options.out / "loss.png", losses={"train_step": whole, "second half in eager": in_eager})
    accuracies = training.accuracy(everything), resumed.accuracy(everything)
    print(f"held-out accuracy: {accuracies[0]:.1%}; second half in eager: {accuracies[1]:.1%}")
    print(f"checkpoint and loss curve: {options.out}/")
    return accuracies


if __name__ == "__main__":
    main()
