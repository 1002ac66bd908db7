"""The recipe of images: a small ResNet learns digits, and the images of a folder."""

import numpy as np
import PIL.Image
import pytest
import timm
import torch

from docs.examples.recipes import images

SMALL = ["--model", "test_resnet", "--size", "32"]


@pytest.mark.every(3)
def test_images(tmp_path, split_graphs, others_may_warn):
    arguments = [*SMALL, "--steps", "60", "--out", str(tmp_path)]
    losses, accuracy = images.main(arguments)
    assert sum(losses[-10:]) < 0.4 * sum(losses[:10])
    assert accuracy > 0.7
    assert not split_graphs
    assert (tmp_path / "images.png").stat().st_size > 10_000
    # In eager, the weights that are left label as many images, whatever was folded.
    model = timm.create_model("test_resnet", num_classes=10).eval()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    _, held_out, _ = images.enlarged_digits(32)
    with torch.no_grad():
        guesses = model(held_out.tensors[0]).argmax(1)
    share = (guesses == held_out.tensors[1]).float().mean().item()
    assert share == pytest.approx(accuracy, abs=0.005)


def test_folder_of_images(tmp_path):
    """Files become batches; a part with other classes is an error."""
    for part, classes in {"train": "ab", "val": "ab"}.items():
        for label in classes:
            (tmp_path / part / label).mkdir(parents=True)
            pixels = np.full((40, 50, 3), 255 if label == "b" else 0, np.uint8)
            for number in range(2):
                PIL.Image.fromarray(pixels).save(tmp_path / part / label / f"{number}.png")
    train, held_out, classes = images.folder_of_images(tmp_path, 32)
    assert (len(train), len(held_out), classes) == (4, 4, 2)
    for data in (train, held_out):
        image, label = data[3]
        assert (tuple(image.shape), label) == ((3, 32, 32), 1)
        assert torch.allclose(image, torch.tensor(2.0))  # white
    (tmp_path / "val" / "b").rename(tmp_path / "val" / "c")
    with pytest.raises(SystemExit, match=r"train has the classes \['a', 'b'\].*'c'\]"):
        images.folder_of_images(tmp_path, 32)


def test_weights_for_other_classes(tmp_path):
    """The file's convolutions are taken, and the last layer is new."""
    given = timm.create_model("test_resnet", num_classes=5)
    torch.save(given.state_dict(), tmp_path / "given.pt")
    model = images.made("test_resnet", str(tmp_path / "given.pt"), 3)
    assert torch.equal(model.conv1[0].weight, given.conv1[0].weight)
