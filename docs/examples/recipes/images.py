"""A ResNet of timm that learns to tell images apart, each training step one executable.

    python -m docs.examples.recipes.images
    python -m docs.examples.recipes.images --folder FOLDER --model resnet50 --weights FILE

`--folder` names a folder with the folders `train` and `val`, and each of them has one folder of
images for each class, as torchvision's `ImageFolder` reads them. Without it, the images are
scikit-learn's digits, enlarged. `--model` is any model of timm. Its weights are random, unless
`--weights` names a file of them. In inference, `freeze` folds batch norm into the convolutions.
"""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, transforms

import xla_dynamo
from docs.examples import digits
from docs.examples.progress import plot, track
from docs.examples.recipes.common import beside_eager, eager_step, options_of


def enlarged_digits(size: int) -> tuple[Dataset, Dataset, int]:
    """Training and held-out images f32[3, size, size] of digits, and the number of classes."""
    train, held_out, labels, held_out_labels = digits.data()

    def images(small: torch.Tensor) -> torch.Tensor:
        large = F.interpolate(small, (size, size), mode="bilinear")
        return (large - 0.5).repeat(1, 3, 1, 1)

    return (
        TensorDataset(images(train), labels),
        TensorDataset(images(held_out), held_out_labels),
        10,
    )


def folder_of_images(folder: pathlib.Path, size: int) -> tuple[Dataset, Dataset, int]:
    """Training and held-out images f32[3, size, size] of a folder, and the number of classes."""
    numbers = transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)
    drawn = transforms.RandomResizedCrop(size, (0.5, 1)), transforms.RandomHorizontalFlip()
    whole = transforms.Resize(size), transforms.CenterCrop(size)
    train = datasets.ImageFolder(folder / "train", transforms.Compose([*drawn, *numbers]))
    held_out = datasets.ImageFolder(folder / "val", transforms.Compose([*whole, *numbers]))
    if train.classes != held_out.classes:
        raise SystemExit(
            f"{folder}/train has the classes {train.classes}, {folder}/val has {held_out.classes}"
        )
    return train, held_out, len(train.classes)


def made(name: str, weights: str | None, classes: int) -> nn.Module:
    """A model of timm whose last layer, for so many classes, is new; a file gives the others."""
    given: dict[str, Any] = {}
    if weights:
        given = {"pretrained": True, "pretrained_cfg_overlay": {"file": weights}}
    return timm.create_model(name, num_classes=classes, **given)


def loss_fn(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of a batch."""
    return F.cross_entropy(model(images), labels)


def forever(loader: DataLoader) -> Iterator[list[torch.Tensor]]:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


def main(arguments: Sequence[str] | None = None) -> tuple[list[float], float]:
    """Train, and label the held-out images; return the losses and the accuracy."""
    parser = options_of(__doc__, "images", steps=150)
    parser.add_argument("--folder", type=pathlib.Path, help="of images: train and val in it")
    parser.add_argument("--model", default="resnet18", help="a name of timm")
    parser.add_argument("--weights", help="a file of weights of this model")
    parser.add_argument("--size", type=int, default=32, help="height and width of an image")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    train, held_out, classes = (
        folder_of_images(options.folder, options.size)
        if options.folder
        else enlarged_digits(options.size)
    )
    model = made(options.model, options.weights, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=options.steps, cycle_momentum=False
    )
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    # One size for all batches: another would be another executable.
    batches = forever(DataLoader(train, options.batch, shuffle=True, drop_last=True))
    losses = []
    for _ in track(range(options.steps), "train_step"):
        losses.append(step(*next(batches)).item())
        schedule.step()

    model.eval()
    fast = torch.compile(model, backend="openxla", options={"freeze": True}, dynamic=False)
    right = count = 0
    with torch.no_grad():
        for images, labels in track(DataLoader(held_out, options.batch), "held-out images"):
            right += (fast(images).argmax(1) == labels).sum().item()
            count += len(labels)
    torch.save(model.state_dict(), options.out / "model.pt")

    # The model is saved, and may change: timed steps move the averages of batch norm.
    model.train()
    batch = next(batches)
    eager = eager_step(model, loss_fn, optimizer)
    calls = {"train_step": lambda: step(*batch).item(), "eager": lambda: eager(*batch).item()}
    plot(
        options.out / "images.png",
        losses={"train_step": losses},
        seconds=beside_eager("a step", calls),
    )
    print(f"accuracy on {count} held-out images: {right / count:.1%} of {classes} classes")
    print(f"weights and picture: {options.out}/")
    return losses, right / count


if __name__ == "__main__":
    main()
