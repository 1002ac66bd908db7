"""Convolutions by plans whose weights come with each call. All cold, however little there is."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.comparison import compare_with_exact
from tests.compiling import watched
from tests.packing import DTYPES, always, convolution, needs_onednn, packed_calls
from tests.test_packed_weights import CONVOLUTIONS
from xla_dynamo.kernels import convolution_parts, convolution_weights, packed_convolution
from xla_dynamo.kernels.convolution_weights import WeightLayout
from xla_dynamo.kernels.packed_convolution import PackedConvolution
from xla_dynamo.runtime.cpu.onednn import OneDNNError

__all__ = ["always"]  # a fixture
pytestmark = needs_onednn


@pytest.fixture(params=[0, 1 << 40], ids=["divided", "whole"])
def division(request, monkeypatch):
    """Work for several threads, and for one."""
    monkeypatch.setattr(convolution_weights, "_FEWEST_DIVIDED", request.param)
    monkeypatch.setattr(convolution_parts, "FEWEST_DIVIDED", request.param)


def check(model, *args, calls=1, dtype=None, **options):
    """Compare with eager in this dtype and in float64; returns the forms of the convolutions."""
    run, built = watched(model, fullgraph=True, **options)
    with torch.no_grad(), torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        actual, expected = run(*args), model(*args)
    with torch.no_grad():
        exact = model.double()(*(x.double() for x in args))
    model.to(args[0].dtype)
    assert actual.stride() == expected.stride()
    assert actual.dtype is expected.dtype
    compare_with_exact(exact, expected, actual)
    found = [call for event in built for call in packed_calls(event.program)]
    assert not any(call.keys for call in found)
    forms = [call.form for call in found]
    layouts = [form for form in forms if isinstance(form, WeightLayout)]
    made = [form for form in forms if isinstance(form, PackedConvolution)]
    assert len(layouts) == len(made) == calls
    return made


def names(forms):
    return [[one.name for one in form.then] for form in forms]


@pytest.mark.usefixtures("division")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case, dtype):
    conv = convolution(**CONVOLUTIONS[case]).to(dtype)
    check(conv, torch.randn(2, conv.in_channels, 9, 7, dtype=dtype))


@pytest.mark.usefixtures("division")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [(70, 200), (64, 63), (40, 129)])
def test_channels_that_fill_no_block(channels, dtype):
    check(nn.Conv2d(*channels, 3).to(dtype), torch.randn(3, channels[0], 8, 8, dtype=dtype))


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="oneDNN has no bfloat16 here")
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_autocast_rounds_the_weight_on_the_way(groups):
    conv = convolution(groups=groups)
    check(conv, torch.randn(2, 8, 9, 7), dtype=torch.bfloat16)
    run, built = watched(conv, fullgraph=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        run(torch.randn(2, 8, 9, 7))
    layouts = [
        call.form for call in packed_calls(built[0].program) if not hasattr(call.form, "then")
    ]
    assert [form.source for form in layouts] == [torch.float32]


class Normed(nn.Module):
    """A convolution, its batch norm, and what may follow."""

    def __init__(self, after, **settings):
        super().__init__()
        self.conv, self.norm, self.after = (
            convolution(padding=1),
            nn.BatchNorm2d(8, **settings),
            after,
        )
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        if self.norm.affine:
            nn.init.normal_(self.norm.weight)
            nn.init.normal_(self.norm.bias)
        self.eval()

    def forward(self, x):
        return self.after(self.norm(self.conv(x)), x)


AFTER = {
    "nothing": (lambda y, x: y, []),
    "relu": (lambda y, x: y.relu(), ["relu"]),
    "a sum": (lambda y, x: y + x, ["add"]),
    "a sum and relu": (lambda y, x: (y + x).relu(), ["add", "relu"]),
    "swish": (lambda y, x: F.silu(y), ["swish"]),
    "hardswish": (lambda y, x: F.hardswish(y), ["hardswish"]),
    "clamp": (lambda y, x: F.relu6(y), ["clamp"]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", AFTER)
def test_batch_norms_are_in_the_call(case, dtype):
    after, expected = AFTER[case]
    forms = check(Normed(after).to(dtype), torch.randn(2, 8, 9, 7, dtype=dtype))
    assert names(forms) == [["scale", "shift", *expected]]


def test_batch_norms_without_factors():
    forms = check(Normed(AFTER["relu"][0], affine=False), torch.randn(2, 8, 9, 7))
    assert names(forms) == [["scale", "shift", "relu"]]


def test_a_result_that_is_read_twice_stays():
    """Before the batch norm, or behind it."""

    class Twice(Normed):
        def forward(self, x):
            y = self.conv(x)
            return self.norm(y) + y * 2

    assert names(check(Twice(None), torch.randn(2, 8, 9, 7))) == [[]]
    both = lambda y, x: y.relu() + y.tanh()  # noqa: E731
    assert names(check(Normed(both), torch.randn(2, 8, 9, 7))) == [["scale", "shift"]]


def test_a_vector_along_another_dimension_stays():
    class Rows(Normed):
        def forward(self, x):
            return self.conv(x) * x[0, 0, 0] + x[0, 0, 1]

    assert names(check(Rows(None), torch.randn(2, 8, 9, 8))) == [[]]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so(number):
    model, x = Normed(AFTER["a sum and relu"][0]), torch.randn(2, 8, 9, 7)
    x[0, 3, 4, 4] = number
    run, _ = watched(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_weights_that_change_are_seen():
    """However they change: nothing is kept."""
    model, x = Normed(AFTER["relu"][0]), torch.randn(2, 8, 9, 7)
    run, built = watched(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
            model.conv.weight.data.numpy()[:] *= 2
            model.norm.running_mean.data.add_(1)
    assert len(built) == 1


def test_weights_of_other_strides_and_inputs_as_weights():
    weight = torch.randn(8, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 9, 7)
    for each in (weight, weight[:, :, ::1], weight.flip(0), weight.transpose(0, 1)):
        torch._dynamo.reset()
        run, built = watched(torch.conv2d, fullgraph=True)
        torch.testing.assert_close(run(x, each), torch.conv2d(x, each), rtol=1e-4, atol=1e-4)
        assert len(packed_calls(built[0].program)) == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_training(dtype):
    """The forward is by plans; gradients are eager's."""
    model = nn.Sequential(convolution(padding=1), nn.BatchNorm2d(8), nn.ReLU(), convolution())
    x = torch.randn(2, 8, 9, 7, requires_grad=True)
    found = []
    for f in (model, torch.compile(model, backend="openxla")):
        model.zero_grad()
        x.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            f(x).square().mean().backward()
        found.append([x.grad, *(p.grad for p in model.parameters())])
    loose = (
        {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    )
    for eager, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, **loose)


def test_threads_call_one_program():
    model, failures = Normed(AFTER["a sum and relu"][0]), []
    run, _ = watched(model, fullgraph=True)
    with torch.no_grad():
        run(torch.randn(4, 8, 9, 7))

    def call(seed):
        x = torch.randn(4, 8, 9, 7, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            same = [torch.allclose(run(x), model(x), rtol=1e-4, atol=1e-4) for _ in range(50)]
        failures.extend([seed] * (not all(same)))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_onednn_cannot_compute_stays_xlas(monkeypatch):
    def refuse(form):
        raise OneDNNError("unimplemented")

    monkeypatch.setattr(packed_convolution, "layout_of", refuse)
    check(convolution(), torch.randn(2, 8, 9, 7), calls=0)


def test_a_layout_that_cannot_be_divided_is_brought_whole(monkeypatch, division):
    def refuse(*how):
        raise OneDNNError("a block is cut")

    monkeypatch.setattr(convolution_weights.onednn, "part_of", refuse)
    check(nn.Conv2d(64, 256, 3), torch.randn(2, 64, 8, 8))
