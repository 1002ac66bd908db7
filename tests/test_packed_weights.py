"""Convolutions with packed weights under `freeze`: eager's numbers and strides, and changes seen.

Cold, and of sizes below those that oneDNN is used for.
"""

import dataclasses
import gc
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.compiling import watched
from tests.freezing import check_inference, frozen
from tests.packing import (
    DTYPES,
    Block,
    always,
    assert_packed,
    convolution,
    needs_onednn,
    packed_calls,
)
from xla_dynamo.errors import ExecutionError, LoweringError
from xla_dynamo.kernels import convolution_parts, packed_convolution
from xla_dynamo.kernels.onednn_convolution import OneDNNConvolution
from xla_dynamo.kernels.packed_convolution import PackedConvolution
from xla_dynamo.lowerings.passes.epilogues import PostOp
from xla_dynamo.runtime.cpu.call_scripts import handles_of
from xla_dynamo.runtime.cpu.onednn import OneDNNError

__all__ = ["always"]  # a fixture
pytestmark = needs_onednn

CONVOLUTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "padded": {"padding": 1},
    "padded in one dimension": {"padding": (0, 1)},
    "strided": {"stride": 2, "padding": 1},
    "dilated": {"dilation": 2, "padding": 2},
    "in groups": {"groups": 4},
    "each channel by itself": {"groups": 8, "padding": 1},
    "each channel twice": {"groups": 8, "out_channels": 16},
    "a window of one element": {"kernel_size": 1},
    "one element, strided": {"kernel_size": 1, "stride": 2},
    "a window that is not square": {"kernel_size": (1, 3)},
    "one image channel": {"in_channels": 1},
    "padded on one side": {"kernel_size": 4, "padding": "same"},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_have_eagers_numbers_and_strides(case, form, dtype):
    conv = convolution(**CONVOLUTIONS[case]).to(dtype)
    x = torch.randn(2, conv.in_channels, 9, 7, dtype=dtype).contiguous(memory_format=form)
    assert_packed(conv, x, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_batches(size, dtype):
    assert_packed(convolution(padding=1).to(dtype), torch.randn(size, 8, 6, 6, dtype=dtype), 1)


def test_an_empty_batch():
    check_inference(frozen(convolution(padding=1)), torch.randn(0, 8, 6, 6))


def test_an_image_with_gaps():
    assert_packed(convolution(padding=1), torch.randn(2, 16, 12, 6)[:, ::2, ::2], 1)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_default_device(device):
    """It is that of the caller's new tensors, and not of packed weights."""
    conv, x = convolution(padding=1), torch.randn(2, 8, 6, 6)
    run = frozen(conv)
    with torch.no_grad():
        expected = conv(x)
        with torch.device(device):
            torch.testing.assert_close(run(x), expected, rtol=1e-5, atol=1e-5)


def test_what_has_other_weights_is_left_alone():
    assert_packed(nn.ConvTranspose2d(8, 8, 3), torch.randn(2, 8, 6, 6), 0)
    assert_packed(nn.Conv1d(8, 8, 3), torch.randn(2, 8, 6), 0)
    run, built = watched(torch.conv2d, fullgraph=True, freeze=True)
    x, weight = torch.randn(2, 8, 6, 6), torch.randn(4, 8, 3, 3)
    torch.testing.assert_close(run(x, weight), torch.conv2d(x, weight))
    assert not any(call.keys for call in packed_calls(built[0].program))


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("kernel", [1, 3])
def test_parts_for_threads(threads, batch, kernel, monkeypatch):
    """More threads than rows, and images that they do not divide evenly."""
    monkeypatch.setenv("NPROC", str(threads))
    monkeypatch.setattr(convolution_parts, "FEWEST_DIVIDED", 0)
    conv = convolution(kernel_size=kernel, padding=kernel // 2, dilation=kernel // 2 or 1)
    model = nn.Sequential(conv, nn.ReLU(), convolution(padding=1, stride=2, groups=8), nn.SiLU())
    x = torch.randn(batch, 8, 7, 5)
    assert_packed(model, x, 2)
    x[0, 0, 0, 0] = float("nan")
    check_inference(frozen(model), x, eager=model, equal_nan=True)


def test_torchs_number_of_threads_stays():
    before = torch.get_num_threads()
    assert_packed(convolution(padding=1), torch.randn(2, 8, 6, 6), 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("pad", [(0, 1, 0, 1), (1, 0, 2, 1), (0, -1, 0, 1), (9, 9, 9, 9)])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_zeros_around_an_image_are_part_of_the_window(pad, value):
    conv = convolution(stride=2)
    folds = value == 0 and min(pad) >= 0 and max(pad) < 3

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv

        def forward(self, x):
            return self.conv(torch.nn.functional.pad(x, pad, value=value))

    run, built = watched(Padded(), fullgraph=True, freeze=True)
    check_inference(run, torch.randn(2, 8, 8, 7), eager=Padded())
    shapes = [call.form.convolution.image for call in packed_calls(built[0].program)]
    assert shapes == [(2, 8, 8, 7)] if folds else shapes != [(2, 8, 8, 7)]


# --- weights that change -------------------------------------------------------------------------


def _in_place(model):
    model.first.weight.mul_(2)


def _through_a_view(model):
    model.first.weight.detach()[1:3].zero_()


def _bias(model):
    model.second.bias.add_(1)


def _statistics(model):
    model.norm.running_var.mul_(3)


def _loaded(model):
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})


def _other_memory(model):
    model.first.weight.data = torch.randn(8, 8, 3, 3)


def _channels_last(model):
    model.to(memory_format=torch.channels_last)


def _another_parameter(model):
    model.second.weight = nn.Parameter(torch.randn(8, 8, 3, 3))


def _optimizer(model):
    with torch.enable_grad():
        model(torch.randn(1, 8, 6, 6)).sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.5).step()


CHANGES = [
    _in_place,
    _through_a_view,
    _bias,
    _statistics,
    _loaded,
    _other_memory,
    _channels_last,
    _another_parameter,
    _optimizer,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_changes_are_seen(change):
    model, x = Block(), torch.randn(2, 8, 6, 6)
    run = frozen(model)
    for _ in range(2):
        check_inference(run, x, eager=model)
        with torch.no_grad():
            change(model)
        check_inference(run, x, eager=model)


def test_weights_that_are_tied_or_views():
    shared = nn.Parameter(torch.randn(16, 8, 3, 3) / 8)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = convolution(padding=1), convolution(padding=1)
            self.other.weight = self.one.weight
            self.shared = shared

        def forward(self, x):
            y = self.other(self.one(x).relu())
            y = torch.conv2d(y, self.shared[::2], padding=1)
            return torch.conv2d(y, self.shared.view(8, 16, 3, 3)[:, :8], padding=1)

    model, x = Tied(), torch.randn(2, 8, 6, 6)
    run = assert_packed(model, x, 4)
    with torch.no_grad():
        shared.mul_(0.5)
        model.one.weight.add_(0.1)
    check_inference(run, x, eager=model)


def test_two_graphs_share_a_parameter():
    conv = convolution(padding=1)
    runs = frozen(lambda x: conv(x).relu()), frozen(lambda x: conv(x * 2))
    x = torch.randn(2, 8, 6, 6)
    for _ in range(2):
        torch.testing.assert_close(runs[0](x), conv(x).relu())
        torch.testing.assert_close(runs[1](x), conv(x * 2))
        with torch.no_grad():
            conv.weight.mul_(0.5)


def test_sizes_share_the_weights(frozen_runs):
    model = Block()
    run = frozen(model, dynamic=True)
    sizes = [(2, 6), (3, 7), (4, 9)]
    for batch, size in [*sizes, *sizes]:
        check_inference(run, torch.randn(batch, 8, size, size), eager=model)
    count = len(frozen_runs)
    for batch, size in sizes:
        check_inference(run, torch.randn(batch, 8, size, size), eager=model)
    assert len(frozen_runs) == count  # all are packed
    with torch.no_grad():
        model.first.weight.mul_(2)
    for batch, size in [*sizes, *sizes]:
        check_inference(run, torch.randn(batch, 8, size, size), eager=model)


# --- memory, threads, failures -------------------------------------------------------------------


class Watched(np.ndarray):
    """Memory that tells when it is freed."""

    freed = False

    def __del__(self):
        Watched.freed = True


ONES = (1, 1)
CONVOLUTION = OneDNNConvolution(
    image=(2, 8, 6, 6),
    kernel=(8, 8, 3, 3),
    result=(2, 8, 6, 6),
    kernel_dims=(0, 1),
    stride=ONES,
    low=ONES,
    high=ONES,
    dilation=ONES,
    groups=1,
    dtypes=(torch.float32, torch.float32),
    bias=False,
)
FORM = PackedConvolution(CONVOLUTION)


def test_the_handles_hold_what_the_convolutions_read():
    Watched.freed = False
    bias = torch.from_numpy(np.zeros(8, np.float32).view(Watched))
    convolutions = [FORM.packed(torch.randn(8, 8, 3, 3), bias)]
    handles = handles_of(convolutions)
    assert handles.shape == (1,)
    assert handles.data_ptr() % 64 == 0
    del bias
    convolutions.clear()
    gc.collect()
    assert not Watched.freed
    del handles
    gc.collect()
    assert Watched.freed


def test_the_plain_weight_is_given_back():
    Watched.freed = False
    weight = torch.from_numpy(np.ones((8, 8, 3, 3), np.float32).view(Watched))
    convolution = FORM.packed(weight)
    assert not Watched.freed
    del weight
    gc.collect()
    assert Watched.freed
    assert convolution.plan.address


def test_what_onednn_refuses_is_told():
    with pytest.raises(OneDNNError, match="primitive_desc_create of oneDNN failed with status 2"):
        FORM.packed(torch.randn(8, 4, 3, 3))


WRONG = {
    "another result": {"result": (2, 8, 9, 9)},
    "no strides": {"stride": ()},
    "groups that do not divide the channels": {"groups": 3},
    "another rank": {"image": (2, 8, 6)},
    "too much padding": {"low": (3, 3), "result": (2, 8, 8, 8)},
    "more elements than oneDNN counts": {
        "image": (2, 8, 1 << 14, 1 << 14),
        "result": (2, 8, 1 << 14, 1 << 14),
    },
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_no_specification_is_one_that_onednn_refuses(wrong):
    with pytest.raises(LoweringError, match="a call of OneDNNConvolution is none"):
        dataclasses.replace(CONVOLUTION, **wrong)


def test_packed_forms_are_read_as_they_were_written():
    form = dataclasses.replace(FORM, then=(PostOp("add"), PostOp("clamp", (-math.inf, 0.1))))
    text = form.text()
    assert PackedConvolution.read(text) == form
    others = {
        '"groups"': '"group"',
        '"bias": false': '"bias": 0',
        "float32": "nothing",
        '"stride": [1, 1]': '"stride": 1',
        '"kernel_dims": [0, 1]': '"kernel_dims": [0, 1, 1]',
    }
    wrongs = ["", "[]", "{}", *(text.replace(*pair) for pair in others.items())]
    for wrong in wrongs:
        with pytest.raises(LoweringError, match="is no call of PackedConvolution"):
            PackedConvolution.read(wrong)
    with pytest.raises(LoweringError, match="a clamp is followed by others"):
        dataclasses.replace(form, then=form.then[::-1])
    with pytest.raises(LoweringError, match="there is no tan"):
        PostOp("tan")
    with pytest.raises(LoweringError, match="the wrong way round"):
        PostOp("clamp", (1.0, 0.0))


def test_threads_call_one_program_while_the_weights_change():
    model, x = Block(), torch.randn(2, 8, 6, 6)
    run = frozen(model)
    with torch.no_grad():
        expected = [model(x)]
        model.first.weight.mul_(2)
        expected.append(model(x))
    errors = []

    def call():
        with torch.no_grad():
            for _ in range(30):
                y = run(x)
                if not any(torch.allclose(y, e, atol=1e-4, rtol=1e-4) for e in expected):
                    errors.append(y)

    with torch.no_grad():
        run(x)
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        with torch.no_grad():
            model.first.weight.copy_(model.first.weight * (2 if number % 2 else 0.5))
    for thread in threads:
        thread.join()
    assert not errors


def test_a_failure_is_told(monkeypatch):
    """A convolution without a stream cannot be executed."""
    broken = SimpleNamespace(handle=0)
    monkeypatch.setattr(packed_convolution.onednn, "stream", lambda: broken)
    monkeypatch.setattr(packed_convolution.onednn, "execute", lambda primitive, arguments: None)
    failed = pytest.raises(ExecutionError, match="dnnl_primitive_execute failed")
    with torch.no_grad(), failed:
        frozen(convolution())(torch.randn(2, 8, 6, 6))
