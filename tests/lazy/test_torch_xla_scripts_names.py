"""What scripts of PyTorch/XLA use beside its documented names: seeds, gradients, lines printed."""

import gc

import pytest
import torch

import xla_dynamo
from xla_dynamo.torch_xla import modules
from xla_dynamo.torch_xla.forms import launching, random_state, utilities, xla_model


def test_the_state_of_random_numbers_is_a_seed():
    random_state.set_rng_state(11)
    assert random_state.get_rng_state() == 11
    torch.rand(3, device="xla").cpu()
    state = random_state.get_rng_state()
    assert isinstance(state, int)
    assert state != 11
    assert random_state.get_rng_state() == state
    first = torch.rand(3, device="xla").cpu()
    random_state.set_rng_state(torch.tensor(state))
    assert torch.equal(torch.rand(3, device="xla").cpu(), first)
    random_state.set_rng_state(xla_dynamo.get_rng_state())


def test_gradients_of_an_optimizer_are_those_of_its_parameters():
    given = torch.ones(2, device="xla", requires_grad=True)
    others = torch.ones(2, device="xla", requires_grad=True)
    optimizer = torch.optim.SGD([{"params": [given]}, {"params": [others]}], lr=1.0)
    (given * 3).sum().backward()
    (found,) = xla_model._fetch_gradients(optimizer)
    found.mul_(2)
    assert given.grad.tolist() == [6.0, 6.0]


def test_tensors_of_a_value_are_brought_to_the_host():
    tensor = torch.ones(2, device="xla") * 2
    moved = xla_model._maybe_convert_to_cpu({"a": [tensor, 1]})
    assert moved["a"][0].device.type == "cpu"
    assert moved["a"][0].tolist() == [2.0, 2.0]
    assert xla_model._maybe_convert_to_cpu([tensor], convert=False)[0] is tensor


def test_lines_of_training_read_as_pytorch_xlas(capsys):
    utilities.print_training_update("xla:0", 3, 0.5, 2.0, 1.0, epoch=1)
    utilities.print_test_update("xla:0", 97.0, epoch=1)
    training, tested = capsys.readouterr().out.splitlines()
    assert training.startswith(
        "| Training Device=xla:0/0 Epoch=1 Step=3 Loss=0.50000 Rate=2.00 GlobalRate=1.00 Time="
    )
    assert tested.startswith("| Test Device=xla:0/0 Epoch=1 Accuracy=97.00 Time=")


def test_one_process_is_launched_here_with_one_device(monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    seen = []
    launching.launch(lambda index, *args: seen.append((index, args)), (5,), "spawn", True)
    assert seen == [(0, (5,))]
    monkeypatch.setattr(xla_dynamo.runtime, "is_spmd", lambda: True)
    with pytest.raises(NotImplementedError, match="SPMD"):
        launching.launch(print)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_import_leaves_the_collection_of_garbage_as_it_was(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        with modules._nothing_collected():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
