"""The recipe of Stable Diffusion: eager's images, one executable for each part.

Cold: nothing is cached on disk, and Dynamo starts anew.
"""

import numpy as np
import PIL.Image
import pytest
import torch

from docs.examples.recipes import stable_diffusion

pytestmark = pytest.mark.usefixtures("cold", "others_may_warn")


@pytest.mark.every(2)
def test_stable_diffusion(tmp_path, executables, split_graphs):
    """The weights come from a folder, as real ones would, and as some of them are halves."""
    pipeline = stable_diffusion.random_pipeline(width=16, size=32)
    pipeline.to(torch.float16).save_pretrained(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--size", "32", "--steps", "3"]
    arguments += ["--prompt", "a fox", "a bowl", "--out", str(tmp_path)]
    images = stable_diffusion.main(arguments)
    assert images["openxla"].shape == (2, 32, 32, 3)
    np.testing.assert_allclose(images["openxla"], images["eager"], atol=1e-4)
    assert images["eager"].std() > 0.01
    assert executables() == 3  # the text encoder, the U-Net and the decoder
    assert not split_graphs
    rows = np.split(np.asarray(PIL.Image.open(tmp_path / "images.png"), dtype=int), 2)
    assert rows[0].shape == (32, 64, 3)
    np.testing.assert_allclose(rows[0], rows[1], atol=1)
    assert (tmp_path / "seconds.png").exists()


def test_the_prompt_matters():
    """The random model reads words: from one seed, two prompts give two images."""
    pipeline = stable_diffusion.random_pipeline(width=16, size=32)
    pipeline.set_progress_bar_config(disable=True)
    options = stable_diffusion.parser_of_recipe().parse_args(["--size", "32", "--steps", "2"])
    drawn = []
    for prompt in ("a fox", "a bowl", "a fox"):
        options.prompt = [prompt]
        drawn.append(stable_diffusion.draw(pipeline, options, "eager"))
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-4
    assert np.array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize("wrong", [["--width", "12"], ["--size", "100"], ["--steps", "0"]])
def test_wrong_sizes(wrong, capsys):
    with pytest.raises(SystemExit):
        stable_diffusion.main(wrong)
    assert f"argument {wrong[0]}" in capsys.readouterr().err
