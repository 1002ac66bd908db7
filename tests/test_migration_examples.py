"""The examples of docs/examples/migration learn, and compute what eager does."""

import pathlib

import pytest
import torch

from docs.examples import migration
from docs.examples.migration import (
    decoder_fsdp,
    generation,
    gradient_accumulation,
    mnist,
    resnet,
    stable_diffusion,
)
from xla_dynamo import process_state

TESTED = {decoder_fsdp, generation, gradient_accumulation, mnist, resnet, stable_diffusion}


def test_every_example_is_tested():
    folder = pathlib.Path(migration.__file__).parent
    assert {pathlib.Path(module.__file__) for module in TESTED} == {
        path for path in folder.glob("*.py") if path.stem != "__init__"
    }


def test_mnist():
    losses = mnist.main(["--steps", "12", "--batch", "32"])
    assert losses[0] > 2
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


@pytest.mark.every(4)
def test_resnet():
    losses = resnet.main(["--steps", "3", "--batch", "8", "--size", "32", "--devices", "8"])
    assert losses[-1] < losses[0]


@pytest.mark.every(2)
@pytest.mark.parametrize("how", [[], ["--auto"]], ids=["recipe", "auto"])
def test_decoder_fsdp(how, capsys):
    with process_state.replaced():
        losses = decoder_fsdp.main(["--steps", "4", "--layers", "1", "--width", "64", *how])
    assert losses[-1] < losses[0]
    if how:
        assert "spmd.mark_sharding" in capsys.readouterr().out


def test_gradient_accumulation():
    losses = gradient_accumulation.main(["--steps", "8"])
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])


@pytest.mark.every(3)
def test_stable_diffusion():
    eager, image = stable_diffusion.main(["--steps", "2"])
    torch.testing.assert_close(image, eager, rtol=1e-3, atol=1e-3)


def test_generation():
    wanted, found = generation.main(["--tokens", "6"])
    assert torch.equal(wanted, found)
