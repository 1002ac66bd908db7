"""Tensors that go to the lazy device and back: by copies, printing, control flow, and files."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import xla_dynamo
from tests.comparison import compare
from xla_dynamo.errors import UnsupportedDtype, UnsupportedTensor
from xla_dynamo.runtime.metrics import counter_value

XLA = xla_dynamo.device()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3),
        lambda: torch.randn(2, 3).t(),
        lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda: torch.randn(4, 6)[:, ::2],
        lambda: torch.randn(3, 1).expand(3, 2),
        lambda: torch.randn(2, 2, dtype=torch.complex64).conj(),
        lambda: torch.tensor(2, dtype=torch.uint8),
        lambda: torch.empty(0, 4),
    ],
)
def test_there_and_back_keep_values_and_strides(make):
    x = make()
    there = x.to(XLA)
    assert there.device == XLA
    assert there.stride() == x.clone().stride()  # as a copy on the CPU has them
    back = there.cpu()
    assert back.device.type == "cpu"
    compare(x.clone(), back, values=True)
    assert torch.equal(there.to("cpu", torch.complex128), x.to(torch.complex128))


def test_what_goes_there_is_a_copy():
    x = torch.zeros(2)
    there = x.to(XLA)
    x += 1
    back = there.cpu()
    back += 2
    assert (x.tolist(), there.tolist(), back.tolist()) == ([1, 1], [0, 0], [2, 2])


def test_copies_into_tensors_of_the_other_side():
    there, here = torch.zeros(2, 2, device=XLA), torch.zeros(2, 2)
    there.t().copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    here[1].copy_(there[0])
    assert there.tolist() == [[1, 3], [2, 4]]
    assert here.tolist() == [[0, 0], [1, 3]]
    assert there.to(XLA) is there
    assert there.to(XLA, copy=True) is not there


def test_numbers_and_control_flow_compute_what_they_need():
    x = torch.arange(4.0, device=XLA)
    y = x.sum()
    assert y.item() == 6.0
    assert float(y) == 6.0
    assert int(x[2]) == 2
    assert bool(y > 5)
    assert [2 * v.item() for v in x] == [0, 2, 4, 6]
    steps = 0
    while y > 1:
        y = y / 2
        steps += 1
    assert steps == 3
    assert torch.equal(x, torch.arange(4, device=XLA))
    assert list(range(5))[x.to(torch.int64)[1]] == 1


def test_item_computes_nothing_else():
    other = torch.ones(2, device=XLA) * 3
    before = counter_value("UncachedCompile")
    assert (torch.ones(2, device=XLA).sum() + 5).item() == 7
    from xla_dynamo.lazy.contents import cell_of

    assert counter_value("UncachedCompile") == before + 1
    assert cell_of(other).value.record is not None
    assert other.tolist() == [3, 3]


def test_printing():
    assert repr(torch.ones(2, device=XLA)) == "tensor([1., 1.], device='xla:0')"
    parameter = torch.nn.Parameter(torch.zeros(1, 2, dtype=torch.bfloat16, device=XLA))
    assert "device='xla:0', dtype=torch.bfloat16, requires_grad=True" in repr(parameter)
    assert f"{torch.tensor(2.5, device=XLA):.1f}" == "2.5"


def test_numpy_is_refused_as_for_other_devices():
    with pytest.raises(TypeError, match="can't convert xla:0 device type tensor to numpy"):
        torch.ones(2, device=XLA).numpy()


def test_deepcopy_copies():
    module = torch.nn.Linear(2, 2, device=XLA)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.fill_(5)
    assert isinstance(twin.weight, torch.nn.Parameter)
    assert not (module.weight == 5).any()
    x = torch.ones(2, device=XLA)
    y = copy.deepcopy(x)
    x += 1
    assert y.tolist() == [1, 1]


def test_files_and_pickles():
    x = torch.arange(6.0, device=XLA).view(2, 3).t()
    compare(x.cpu(), pickle.loads(pickle.dumps(x)).cpu(), values=True)
    module = torch.nn.BatchNorm1d(3).to(XLA)
    module(torch.randn(4, 3, device=XLA))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    for place, expected in (("cpu", "cpu"), (None, "xla"), ("xla", "xla")):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        for name, value in module.state_dict().items():
            assert loaded[name].device.type == expected
            compare(value.cpu(), loaded[name].cpu(), values=True)


def test_modules_move_in_both_directions():
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    x = torch.randn(2, 1, 5, 5)
    expected = module(x)
    module.to(XLA)
    assert {t.device for t in (*module.parameters(), *module.buffers())} == {XLA}
    compare(expected, module(x.to(XLA)).cpu(), values=True)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    module.cpu()
    module.load_state_dict(state)  # from the device into the CPU
    assert all(torch.equal(v, state[k].cpu()) for k, v in module.state_dict().items())


def test_what_the_device_has_no_form_for_says_so():
    with pytest.raises(UnsupportedTensor, match=r"call .cpu\(\) before the operator"):
        torch.ones(2, 2, device=XLA).to_sparse()
    with pytest.raises(UnsupportedDtype, match=r"no tensors of torch\.bits8"):
        torch.ones(2, dtype=torch.uint8).view(torch.bits8).to(XLA)


@pytest.mark.parametrize("take", [torch.from_dlpack, np.from_dlpack])
def test_dlpack(take):
    x = torch.arange(6.0).view(2, 3).to("xla").t() * 2

    class Capsule:
        __dlpack_device__ = torch.zeros(1).__dlpack_device__

        def __dlpack__(self, **kwargs):
            return xla_dynamo.to_dlpack(x)

    taken = take(Capsule())
    assert taken.tolist() == x.tolist()
    x.add_(1)
    xla_dynamo.sync()
    assert taken.tolist() == (x - 1).tolist()
    with pytest.raises(xla_dynamo.UnsupportedTensor, match="not of cpu"):
        xla_dynamo.to_dlpack(torch.ones(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda x, **to: torch.zeros_like(x, **to),
        lambda x, **to: torch.full_like(x, 3, dtype=torch.int64, **to),
        lambda x, **to: x.new_ones(3, **to),
        lambda x, **to: x.new_full((2, 1), 0.5, **to),
        lambda x, **to: torch.empty_like(x, **to).fill_(2),
        lambda x, **to: torch.randn_like(x, **to) * 0,
        lambda x, **to: x.new_tensor([1, 2], **to),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_like_one_of_the_device_elsewhere(make, device):
    x = torch.randn(4, 6, device="cpu").t()
    made, expected = make(x.to(XLA), device=device), make(x, device=device)
    assert made.device == expected.device
    assert (made.dtype, made.stride()) == (expected.dtype, expected.stride())
    if device == "cpu":
        torch.testing.assert_close(made, expected)


def test_whether_memory_is_pinned_asks_for_no_elements():
    before = counter_value("CompileTime"), counter_value("aten::is_pinned")
    x = torch.ones(3, device=XLA) * 2
    assert not x.is_pinned()
    assert (counter_value("CompileTime"), counter_value("aten::is_pinned")) == before
